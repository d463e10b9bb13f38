#!/usr/bin/env python3
"""Streams through router, prefill worker and decode worker beside the same streams through the
engine alone: TTFT, time between tokens, output, the handoff's share, start and memory.

Usage: cluster.py [--quick] [--json] [--model 125M] [--repeats N]; --help lists the rest.
Needs the programs of a release build: cmake --build build/release
"""
import argparse
import sys
import time

from programs import BenchCluster, add_options, bench, peak_bytes
from report import print_report, row
from streams import Load, better, percentile, run_load


def loads_of(quick):
    if quick:
        return [Load(1, 1, 64, 4), Load(8, 1, 64, 4)]
    return [Load(1, 3, 512, 64), Load(8, 2, 512, 64)]


def engine_alone(arguments, load):
    """{what: value} of bench_streams."""
    rows = bench(arguments.build, "streams", "--model", arguments.model,
                 "--models", arguments.models, "--threads", arguments.threads,
                 "--streams", load.streams, "--requests", load.requests,
                 "--prompt-tokens", load.prompt_tokens, "--answer-tokens", load.answer_tokens)
    prefix = f"{arguments.model} {load.name} "
    return {name.removeprefix(prefix): entry["value"] for name, entry in rows.items()}


def through_cluster(cluster, load, seed):
    """({what: (value, unit)}, mean seconds of a handoff on the receiver, mean TTFT of the router)."""
    sources = ((cluster.decode[0], "baton_kv_transfer_seconds"),
               (cluster.router, "baton_request_ttft_seconds"))
    def sums():
        return [[server.metric(f"{name}_{part}") for part in ("sum", "count")]
                for server, name in sources]
    before = sums()
    seen = run_load(cluster, load, seed)
    handoff, ttft = [(after[0] - start[0]) / (after[1] - start[1])
                     for start, after in zip(before, sums())]
    figures = seen.figures(load)
    wait = percentile(seen.second, 0.5) - percentile(seen.gaps, 0.5)
    return figures, {"handoff": handoff, "ttft": ttft, "seen": max(0, wait)}


def load_rows(arguments, cluster, load):
    """Both in turn; of each figure the best of all repetitions."""
    best, alone, handoffs = {}, {}, []
    for repeat in range(arguments.repeats):
        figures, handoff = through_cluster(cluster, load, repeat)
        handoffs.append(handoff)
        for what, (value, unit) in figures.items():
            best[what] = (better(what, value, best.get(what, (value,))[0]), unit)
        for what, value in engine_alone(arguments, load).items():
            alone[what] = better(what, value, alone.get(what, value))
    prefix = f"{arguments.model} {load.name} "
    rows = [row(prefix + what, value, unit, alone[what], "engine alone")
            for what, (value, unit) in best.items()]
    least = min(handoffs, key=lambda handoff: handoff["handoff"])
    rows.append(row(prefix + "handoff, first byte to verified", 1e3 * least["handoff"], "ms",
                    1e3 * least["ttft"], "TTFT"))
    rows.append(row(prefix + "handoff, wait that a client sees", 1e3 * least["seen"], "ms",
                    1e3 * least["ttft"], "TTFT"))
    return rows


def memory_rows(arguments, cluster, weights_bytes):
    return [row(f"{arguments.model} {server.name} peak memory", peak_bytes(server.pid) * 1e-9, "GB",
                (weights_bytes + cluster.kv_pool_bytes(server)) * 1e-9, "weights + KV")
            for server in cluster.workers]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.model, arguments.repeats = "125M", 1
    engine_alone(arguments, Load(1, 1, 16, 2))  # Makes the model unless it is there.
    model = arguments.models / arguments.model
    cluster = BenchCluster(arguments.build, model, arguments.threads)
    start = time.monotonic()
    with cluster:
        rows = [row(f"{arguments.model} start to a token from end to end",
                    time.monotonic() - start, "s")]
        run_load(cluster, Load(1, 1, 16, 4), "warm-up")
        for load in loads_of(arguments.quick):
            rows += load_rows(arguments, cluster, load)
        rows += memory_rows(arguments, cluster, (model / "model.safetensors").stat().st_size)
    load = loads_of(arguments.quick)[0]
    print_report("cluster", f"1 router, 1 prefill, 1 decode worker, {arguments.threads} threads "
                 f"each, {load.prompt_tokens} in, "
                 f"{load.answer_tokens} out, best of {arguments.repeats}", rows, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
