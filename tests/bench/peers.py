#!/usr/bin/env python3
"""Baton beside llama.cpp and beside servers that run already, with the same bf16 weights, in turn:
the work of bench_engine, each between two measurements of the machine's roofs, and streams as in
cluster.py.

Usage: peers.py --install                   fetches and builds llama.cpp into the cache folder
       peers.py [--quick] [--json] [--model 125M] [--repeats N] [--only engine|serving]
                [--beside vLLM=http://localhost:8123]     --help lists the rest
The cache folder is BATON_BENCH_CACHE, else baton-bench in XDG_CACHE_HOME or ~/.cache.
Exit code 2: something is missing or does not answer; the last line says what.
"""
import argparse
import subprocess
import sys
import time

import llama_cpp
from cluster import loads_of
from programs import BenchCluster, add_options, bench, peak_bytes, roofs
from report import print_report, row, with_goal
from running_server import RunningServer, asked, check_same_model, first_tokens
from streams import Load, better, run_load

PARTS = ("engine", "serving")
BATON, LLAMA_CPP = "Baton", "llama.cpp"
# The goals of the CPU engine's issue, for the 1B model: (work, least share of its roof).
PREFILLS = ((512, 0.85), (4096, 0.7))
DECODES = ((1, 512, 0.85), (8, 128, 0.7), (32, 128, 0.7))
# Where Baton is to be ahead of each peer, and what of its own is bounded.
AHEAD = {("1 stream", "TTFT p50"), ("1 stream", "inter-token p50"),
         ("8 streams", "inter-token p50"), ("8 streams", "output")}
BOUNDS = {("8 streams", "inter-token p99 : p50"): 4, ("", "start to ready"): 3}


def works_of(quick):
    """(part of the name in bench_engine, goal, llama.cpp's rate as a function of file, threads)."""
    works = [(f"prefill {tokens}", goal, lambda path, threads, tokens=tokens:
              llama_cpp.prefill_rate(path, threads, tokens))
             for tokens, goal in (PREFILLS[:1] if quick else PREFILLS)]
    return works + [(f"decode batch {batch} context {context}", goal,
                     lambda path, threads, batch=batch, context=context:
                     llama_cpp.decode_rate(path, threads, batch, context))
                    for batch, context, goal in (DECODES[:1] if quick else DECODES)]


def roof_of(work, before, after):
    """(tokens per second at most, by which roof), at the higher of two measurements."""
    (read_before, peak_before), (read_after, peak_after) = before, after
    compute = work["ops"] / (1e9 * max(peak_before, peak_after))
    read = work["bytes"] / (1e9 * max(read_before, read_after))
    tokens = work["value"] * work["seconds"]
    return tokens / max(compute, read), "product peak" if compute >= read else "read bandwidth"


def figure_rows(name, load, what, values, unit):
    """A figure of each system, {system: value}, then Baton's share of each other one's."""
    rows = [row(f"{name}, {system}", value, unit) for system, value in values.items()]
    if bound := BOUNDS.get((load, what)):
        with_goal(rows[0], "<=", bound)
    for system in list(values)[1:]:
        rows.append(row(f"{name}, {BATON} : {system}", values[BATON] / values[system], "x"))
        if (load, what) in AHEAD:
            with_goal(rows[-1], ">" if what == "output" else "<", 1)
    return rows


def engine_rows(arguments, path):
    rows = []
    for work, goal, their_rate in works_of(arguments.quick):
        name = f"{arguments.model} {work}"
        best = {}
        before = roofs(arguments.build, arguments.threads)
        for _ in range(arguments.repeats):
            ours = bench(arguments.build, "engine", "--model", arguments.model, "--models",
                         arguments.models, "--threads", arguments.threads, "--repeats", 1,
                         "--work", work)[name]
            between = roofs(arguments.build, arguments.threads)
            rate = their_rate(path, arguments.threads)
            after = roofs(arguments.build, arguments.threads)
            for system, value, roof in (
                    (BATON, ours["value"], roof_of(ours, before, between)),
                    (LLAMA_CPP, rate, roof_of(ours, between, after))):
                measured = row(f"{name}, {system}", value, "tok/s", *roof)
                if system not in best or measured["share"] > best[system]["share"]:
                    best[system] = measured
            before = after
        rows += [with_goal(best[BATON], ">=", goal), best[LLAMA_CPP]]
        rows.append(row(f"{name}, {BATON} : {LLAMA_CPP}",
                        best[BATON]["share"] / best[LLAMA_CPP]["share"], "x"))
    return rows


def load_rows(arguments, servers, load):
    """Of each figure the best of all repetitions. `servers` by name, Baton first."""
    best, units = {}, {}
    run = time.time_ns()  # A server that runs on must not know the prompts from an earlier run.
    for repeat in range(arguments.repeats):
        for name, server in servers.items():
            seed = f"{run} {load.name} {repeat}"
            seen = asked(name, server, lambda s=server, seed=seed: run_load(s, load, seed))
            for what, (value, units[what]) in seen.figures(load).items():
                values = best.setdefault(what, {})
                values[name] = better(what, value, values.get(name, value))
    return [entry for what, values in best.items()
            for entry in figure_rows(f"{arguments.model} {load.name} {what}", load.name, what,
                                     values, units[what])]


def cost_rows(arguments, cluster, start_seconds, peer):
    """Start and memory; Baton's memory is the decode worker's, which has all the weights."""
    costs = (("start to ready", "s", start_seconds, peer.start_seconds),
             ("peak memory of a worker", "GB", peak_bytes(cluster.decode[0].pid) * 1e-9,
              peer.peak_bytes() * 1e-9))
    return [entry for what, unit, ours, theirs in costs
            for entry in figure_rows(f"{arguments.model} {what}", "", what,
                                     {BATON: ours, LLAMA_CPP: theirs}, unit)]


def serving_rows(arguments, model, path):
    start = time.monotonic()
    with BenchCluster(arguments.build, model, arguments.threads) as cluster:
        start_seconds = time.monotonic() - start
        with llama_cpp.Server(path, arguments.threads) as peer:
            servers = {BATON: cluster, LLAMA_CPP: peer,
                       **{server.name: server for server in arguments.beside}}
            expected = asked(BATON, cluster, lambda: first_tokens(cluster))
            for name, server in servers.items():
                check_same_model(name, server, expected)
                asked(name, server, lambda s=server: run_load(s, Load(1, 1, 16, 4), "warm-up"))
            rows = [entry for load in loads_of(arguments.quick)
                    for entry in load_rows(arguments, servers, load)]
            return rows + cost_rows(arguments, cluster, start_seconds, peer)


def measure(arguments):
    for server in arguments.beside:
        server.find_model()
    if reason := llama_cpp.missing():
        raise RuntimeError(reason)
    bench(arguments.build, "streams", "--model", arguments.model, "--models", arguments.models,
          "--requests", 1, "--prompt-tokens", 16, "--answer-tokens", 2)  # Makes the model.
    model = arguments.models / arguments.model
    path = llama_cpp.make_model(model)
    # Serving first: it finds out soon that a server has another model.
    serving = serving_rows(arguments, model, path) if "serving" in arguments.only else []
    engine = engine_rows(arguments, path) if "engine" in arguments.only else []
    beside = "".join(f", {server.name} as it runs ({server.model})" for server in arguments.beside)
    print_report("peers", f"llama.cpp of llama-cpp-python {llama_cpp.VERSION}, built for this "
                 f"machine{beside}; bf16 weights, {arguments.threads} threads, in turn, best of "
                 f"{arguments.repeats}", engine + serving, arguments.json)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--install", action="store_true",
                        help="fetch and build llama.cpp, and do nothing else")
    parser.add_argument("--only", choices=PARTS, action="append", help="this part; repeatable")
    parser.add_argument("--beside", metavar="NAME=URL", type=RunningServer, action="append",
                        default=[], help="an OpenAI server with the same model; repeatable")
    arguments = parser.parse_args()
    arguments.only = arguments.only or PARTS
    names = [BATON, LLAMA_CPP, *(server.name for server in arguments.beside)]
    if len(set(names)) != len(names):
        parser.error(f"--beside: each needs a name of its own, other than {BATON}, {LLAMA_CPP}")
    if arguments.beside and "serving" not in arguments.only:
        parser.error("--beside belongs to the part serving, which --only leaves out")
    if arguments.repeats < 1:
        parser.error("--repeats: must be at least 1")
    if arguments.quick:
        arguments.model, arguments.repeats = "125M", 1
    return arguments


def main():
    arguments = parse()
    try:
        if arguments.install:
            llama_cpp.install()
        else:
            measure(arguments)
    except (RuntimeError, AssertionError, OSError, subprocess.CalledProcessError) as error:
        print(f"peers.py: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
