#!/usr/bin/env python3
"""Baton beside llama.cpp: the work of bench_engine and of cluster.py on the same bf16 weights, in
turn, each between two measurements of the machine's roofs.

Usage: peers.py --install                   fetches and builds llama.cpp into the cache folder
       peers.py [--quick] [--json] [--model 125M] [--repeats N]     --help lists the rest
The cache folder is BATON_BENCH_CACHE, else baton-bench in XDG_CACHE_HOME or ~/.cache.
"""
import argparse
import sys
import time

import llama_cpp
from cluster import loads_of
from llama_cpp import missing
from programs import BenchCluster, add_options, bench, peak_bytes, roofs
from report import print_report, row
from streams import Load, better, run_load

PREFILLS = (512, 4096)
DECODES = ((1, 512), (8, 128), (32, 128))
SIDES = ("Baton", "llama.cpp")


def works_of(quick):
    """(part of the name in bench_engine, their tokens per second as a function of file, threads)."""
    works = [(f"prefill {tokens}", lambda path, threads, tokens=tokens:
              llama_cpp.prefill_rate(path, threads, tokens))
             for tokens in (PREFILLS[:1] if quick else PREFILLS)]
    return works + [(f"decode batch {batch} context {context}",
                     lambda path, threads, batch=batch, context=context:
                     llama_cpp.decode_rate(path, threads, batch, context))
                    for batch, context in (DECODES[:1] if quick else DECODES)]


def roof_of(work, before, after):
    """(tokens per second at most, by which roof), at the higher of two measurements."""
    (read_before, peak_before), (read_after, peak_after) = before, after
    compute = work["ops"] / (1e9 * max(peak_before, peak_after))
    read = work["bytes"] / (1e9 * max(read_before, read_after))
    tokens = work["value"] * work["seconds"]
    return tokens / max(compute, read), "product peak" if compute >= read else "read bandwidth"


def ratio_row(name, ours, theirs):
    return row(f"{name}, Baton : llama.cpp", ours / theirs, "x")


def engine_rows(arguments, path):
    rows = []
    for work, their_rate in works_of(arguments.quick):
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
            for side, value, roof in (
                    (SIDES[0], ours["value"], roof_of(ours, before, between)),
                    (SIDES[1], rate, roof_of(ours, between, after))):
                measured = row(f"{name}, {side}", value, "tok/s", *roof)
                if side not in best or measured["share"] > best[side]["share"]:
                    best[side] = measured
            before = after
        rows += [best[side] for side in SIDES]
        rows.append(ratio_row(name, best[SIDES[0]]["share"], best[SIDES[1]]["share"]))
    return rows


def serving_rows(arguments, servers):
    """Of each figure the best of all repetitions."""
    rows = []
    for load in loads_of(arguments.quick):
        best = {}
        for repeat in range(arguments.repeats):
            for side, server in zip(SIDES, servers):
                seen = run_load(server, load, f"{load.name} {repeat}")
                for what, (value, unit) in seen.figures(load).items():
                    old = best.get((what, side), (value, unit))
                    best[what, side] = better(what, value, old[0]), unit
        for what in dict.fromkeys(what for what, _ in best):
            name = f"{arguments.model} {load.name} {what}"
            rows += [row(f"{name}, {side}", *best[what, side]) for side in SIDES]
            rows.append(ratio_row(name, *(best[what, side][0] for side in SIDES)))
    return rows


def cost_rows(arguments, cluster, start_seconds, peer):
    """Start and memory; Baton's memory is the decode worker's, which has all the weights."""
    rows = []
    for what, unit, ours, theirs in (
            ("start to ready", "s", start_seconds, peer.start_seconds),
            ("peak memory of a worker", "GB", peak_bytes(cluster.decode[0].pid) * 1e-9,
             peer.peak_bytes() * 1e-9)):
        name = f"{arguments.model} {what}"
        rows += [row(f"{name}, {SIDES[0]}", ours, unit), row(f"{name}, {SIDES[1]}", theirs, unit),
                 ratio_row(name, ours, theirs)]
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--install", action="store_true", help="fetch and build llama.cpp first")
    arguments = parser.parse_args()
    if arguments.install:
        llama_cpp.install()
    if reason := missing():
        print(f"peers.py: {reason}", file=sys.stderr)
        return 1
    if arguments.quick:
        arguments.model, arguments.repeats = "125M", 1
    bench(arguments.build, "streams", "--model", arguments.model, "--models", arguments.models,
          "--requests", 1, "--prompt-tokens", 16, "--answer-tokens", 2)  # Makes the model.
    model = arguments.models / arguments.model
    path = llama_cpp.make_model(model)
    rows = engine_rows(arguments, path)
    start = time.monotonic()
    with BenchCluster(arguments.build, model, arguments.threads) as cluster:
        start_seconds = time.monotonic() - start
        with llama_cpp.Server(path, arguments.threads) as peer:
            for server in (cluster, peer):
                run_load(server, Load(1, 1, 16, 4), "warm-up")
            rows += serving_rows(arguments, (cluster, peer))
            rows += cost_rows(arguments, cluster, start_seconds, peer)
    print_report("peers", f"llama.cpp of llama-cpp-python {llama_cpp.VERSION}, built for this "
                 f"machine; bf16 weights, {arguments.threads} threads, in turn, best of "
                 f"{arguments.repeats}", rows, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
