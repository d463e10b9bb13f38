#!/usr/bin/env python3
"""The router alone, on one core: workers without a model behind it, open-loop load before it, nginx
in the same run as the yardstick. CPU is the kernel's account of the router's process.

Usage: router_bench.py [--quick] [--json] [--only A,B,...]; --help lists the rest.
Needs the programs of a release build: cmake --build build/release
"""
import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import pathlib
import signal
import sys
import tempfile
import time

import nginx
import tls_cost
from router_side import (ANSWER, PACE_MS, Bench, Side, answered, beside, cpu_seconds,
                         events_of_one, measured, num_answered, prompt, rss_mb, switches)
# Folders that router_side has made known.
from fault_proxy import Faults, ProxyLoop
from process_cluster import await_true
from programs import ROOT
from report import print_report, row

WORKLOADS = ("A", "B", "C", "D", "E", "memory", "overload", "refusals", "fairness")


def workload_a(bench, sides, quick):
    rates = (50,) if quick else (200, 500)
    rows = []
    for rate in rates:
        requests = 40 if quick else rate * 10
        bodies = bench.bodies("A", min(requests, 2000), 800, ANSWER)
        before = switches(sides[0].pid)
        seen = [measured(bench, side, bodies, requests, rate) for side in sides[:1]]
        waits = switches(sides[0].pid) - before
        seen += [measured(bench, side, bodies, requests, rate) for side in sides[1:]]
        name = f"A {rate}/s"
        rows.append(beside(f"{name} CPU per 1,000 answers", "s",
                           per(seen, lambda cpu, s: 1e3 * cpu / max(1, num_answered(s)))))
        for point in ("p50", "p99"):
            rows.append(beside(f"{name} TTFT {point}", "ms",
                               per(seen, lambda _, s: s["ttft_ms"][point])))
        rows += [row(f"{name} answered", answered(seen[0][1]), "%"),
                 row(f"{name} events of an answer", events_of_one(seen[0][1]), "events"),
                 row(f"{name} waits of threads for an answer", waits / requests, "waits"),
                 row(f"{name} load's own lateness p99", seen[0][1]["late_ms"]["p99"], "ms")]
    return rows


def per(seen, figure):
    """[the router's, nginx's or None]"""
    values = [figure(cpu, one) for cpu, one in seen]
    return (values + [None])[:2]


def workload_b(bench, sides, quick):
    """Rates that rise until requests wait for longer than a second; what is done a second then."""
    done, rate = [], 25 if quick else 250
    bodies = bench.bodies("B", 500, 800, ANSWER)
    while True:
        seen = bench.load(sides[0].port, bodies, rate * (1 if quick else 4), rate)
        done.append(num_answered(seen) / seen["seconds"])
        if quick or seen["ttft_ms"]["p50"] > 1000 or rate >= 8000:
            break
        rate = int(rate * 1.4)
    return [row("B most requests a second", max(done), "/s"),
            row("B beyond, of the most", 100 * done[-1] / max(done), "%")]


def workload_c(bench, sides, quick):
    requests = 1 if quick else 20
    rows = []
    for kind, unknown, prefix in (("words", 0, ""), ("a third unknown", 1 / 3, ""),
                                  ("known prefix", 1 / 3, prompt("C", 390_000, bench.vocabulary))):
        bodies = bench.bodies(f"C {kind}", requests + 1, 400_000, 2, unknown, prefix)
        tokens = prompt_tokens(sides[0], bodies)
        seen = [measured(bench, side, bodies, requests, 2) for side in sides]
        rows += [beside(f"C {kind}: CPU per 100,000 prompt tokens", "ms",
                        per(seen, lambda cpu, s, n=tokens: 1e3 * cpu * 1e5 / n / s["sent"])),
                 row(f"C {kind}: tokens of a prompt", tokens, "tokens"),
                 row(f"C {kind}: answered", answered(seen[0][1]), "%")]
    return rows + beside_streams(bench, sides[0], quick)


def beside_streams(bench, side, quick):
    """What streams feel of large prompts that come at once."""
    streams, tokens, prompts = (4, 20, 2) if quick else (16, 250, 20)
    small = bench.bodies("C streams", streams, 200, tokens)
    large = bench.bodies("C at once", prompts, 400_000, 2, 1 / 3)
    alone = bench.load(side.port, small, streams, 0)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        meanwhile = pool.submit(bench.load, side.port, large, prompts, 0)
        seen = bench.load(side.port, small, streams, 0)
    return [row("C streams alone: time between tokens p99", alone["gap_ms"]["p99"], "ms"),
            row(f"C streams beside {prompts} prompts at once: time between tokens p99",
                seen["gap_ms"]["p99"], "ms"),
            row("C streams: answered", answered(seen), "%"),
            row("C at once: answered", answered(meanwhile.result()), "%")]


def prompt_tokens(side, bodies):
    """Of the last request, which is not measured: what comes again costs less."""
    with open(bodies) as file:
        body = json.loads(file.readlines()[-1])
    body.update(stream=False, max_tokens=1)
    return side.post("/v1/completions", **body)["usage"]["prompt_tokens"]


def workload_d(bench, sides, quick):
    streams, tokens = (4, 20) if quick else (64, 500)
    bodies = bench.bodies("D", streams, 200, tokens)
    seen = [measured(bench, side, bodies, streams, 0) for side in sides]
    return [beside("D CPU per 1,000,000 relayed tokens", "s",
                   per(seen, lambda cpu, _: 1e6 * cpu / (streams * tokens))),
            beside("D time between tokens p99", "ms", per(seen, lambda _, s: s["gap_ms"]["p99"])),
            row("D answered", answered(seen[0][1]), "%")]


def overload(bench, quick):
    """A pair of workers that takes `capacity` requests a second; goodput is what is answered while
    more come."""
    capacity = 40 if quick else bench.arguments.capacity
    seconds = 1 if quick else 10
    running = max(1, round(capacity * ANSWER * PACE_MS / 1000))
    rows = []
    with bench.mock("--max-running", running) as addresses, bench.router(addresses) as side:
        side.await_ready()
        bodies = bench.bodies("overload", 500, 800, ANSWER)

        def goodput(factor):
            seen = bench.load(side.port, bodies, round(capacity * factor * seconds),
                              capacity * factor, wait=120)
            return seen["within"] / seen["window_s"], seen
        peak = goodput(1)[0]
        rows.append(row("overload peak", peak, "/s"))
        for factor in ((5,) if quick else (5, 10)):
            good, seen = goodput(factor)
            rows.append(row(f"overload {factor}x goodput, of the peak", 100 * good / peak, "%"))
            rows.append(row(f"overload {factor}x refused", 100 - answered(seen), "%"))
        after = goodput(0.5)[1]
        rows.append(row("overload, then half the load: answered", answered(after), "%"))
        rows.append(row("overload, then half the load: TTFT p50", after["ttft_ms"]["p50"], "ms"))
    return rows


def workload_e(bench, quick):
    """One flipped bit in what the decode worker tells of so many streams: the longest time between
    two tokens of each, beside that of a run without it."""
    streams, tokens, rate = (20, 60, 100) if quick else (1000, 300, 500)
    bodies = bench.bodies("E", streams, 200, tokens)
    names = ("returns", "moves", "retries")
    with ProxyLoop() as loop, bench.mock() as addresses:
        link = loop.proxy(addresses["decode"])
        with bench.router({**addresses, "decode": link.address}) as side:
            side.await_ready()
            usual = bench.load(side.port, bodies, streams, rate)
            before = [side.metric(f"baton_{name}_total") for name in names]
            with concurrent.futures.ThreadPoolExecutor() as pool:
                running = pool.submit(bench.load, side.port, bodies, streams, rate)
                # On a busy machine some may be refused, or late: the row of returns tells.
                enough = streams if quick else 0.9 * streams
                await_true(lambda: side.metric("baton_requests_running") >= enough, 60, "all run")
                link.set(down=Faults(flip_at=(2000,)))
                await_true(lambda: link.counts["flipped"], 60, "a bit is flipped", pause=0.002)
                link.set()
                seen = running.result()
            counts = [side.metric(f"baton_{name}_total") - b for name, b in zip(names, before)]
    name = f"E {streams} streams, one flipped bit"
    return [row(f"E {streams} streams, usual pause p99", usual["longest_gap_ms"]["p99"], "ms"),
            *(row(f"{name}: pause {p}", seen["longest_gap_ms"][p], "ms") for p in ("p50", "p99")),
            *(row(f"{name}: {n}", count, "streams") for n, count in zip(names, counts)),
            row(f"{name}: answered", answered(seen), "%"),
            row(f"{name}: events of an answer", events_of_one(seen), "events")]


def workload_memory(bench, quick):
    """Different prompts, one token each: what the router holds after them. One in 500 is large, for
    the cache of tokens."""
    total, steps, rate = (2000, 4, 1000) if quick else (1_000_000, 10, 1200)
    bodies = bench.folder / "memory.bodies"
    with open(bodies, "w") as file:
        for i in range(500):
            parts = [prompt(f"memory {i} {j}", 400 if i else 8000, bench.vocabulary)
                     for j in range(1 if i else 3)]
            file.write(json.dumps({"model": "model", "max_tokens": 1, "temperature": 0,
                                   "prompt": "".join(f"@@ {part} " for part in parts)}) + "\n")
    rows, sizes, refused = [], [], 0
    with bench.mock() as addresses, bench.router(addresses) as side:
        side.await_ready()
        for step in range(steps):
            count = total // steps
            seen = bench.load(side.port, bodies, count, rate, first=step * count)
            sizes.append(rss_mb(side.pid))
            refused += seen["sent"] - num_answered(seen)
            rows.append(row(f"memory after {(step + 1) * count:,} requests", sizes[-1], "MB"))
            print(f"{rows[-1]['name']}: {sizes[-1]:.1f} MB", file=sys.stderr, flush=True)
    return [*rows, row("memory, growth of the second half",
                       max(0, sizes[-1] - sizes[steps // 2 - 1]), "MB"),
            row("memory, not answered", refused, "requests")]


def refusals(bench, quick):
    """What a request costs that finds the queue full."""
    requests = 50 if quick else 5000
    with bench.mock("--max-running", 1) as addresses, \
            bench.router(addresses, "--max-queued-requests", 1) as side:
        side.await_ready()
        body = json.dumps({"model": "model", "prompt": "one", "max_tokens": 20000, "stream": True,
                           "ignore_eos": True})
        fill = []
        # One runs, perhaps one was refused by the decode worker and one waits in the queue.
        while side.metric("baton_requests_waiting") < 1:
            fill.append(side.connect())
            fill[-1].request("POST", "/v1/completions", body)
            await_true(lambda: side.metric("baton_requests_running") +
                       side.metric("baton_requests_waiting") >= len(fill), 20, "it was taken")
            time.sleep(0.3)  # It may be in the queue on its way.
        bodies = bench.bodies("refused", 500, 800, ANSWER)
        # The stream that runs, and the one that waits, cost something by themselves.
        seconds, before = requests / 500, cpu_seconds(side.pid)
        time.sleep(seconds)
        alone = cpu_seconds(side.pid) - before
        cpu, seen = measured(bench, side, bodies, requests, 500)
        for connection in fill:
            connection.close()
    values = [1e6 * max(0, cpu - alone) / requests, None]
    if not bench.arguments.no_nginx:  # What the kernel takes for as much, and little else.
        with nginx.Nginx(bench.folder / "nginx-refused", "127.0.0.1:1", bench.on_router_core) as proxy:
            of_nginx = Side(proxy.process.pid, f"http://127.0.0.1:{proxy.port}")
            values[1] = 1e6 * measured(bench, of_nginx, bodies, requests, 500,
                                       path="/refused")[0] / requests
    return [beside("refusals: CPU of each", "us", values),
            row("refusals: CPU of what ran beside them, for each", 1e6 * alone / requests, "us"),
            row("refusals: refused", 100 - answered(seen), "%")]


def fairness(bench, quick):
    """A tenant alone, then beside one that sends 20 times as much, of the same requests: twice what
    the workers take. All wait for the prefill worker, which takes 100 ms for each."""
    seconds, tokens = (2, 4) if quick else (60, 4)
    names = ("quiet", "flood")
    keys = bench.folder / "keys"
    keys.write_text("".join(f"{name} {hashlib.sha256(name.encode()).hexdigest()}\n"
                            for name in names))
    bodies = bench.bodies("fairness", 200, 200, tokens)
    with bench.mock("--prompt-us", 100_000, "--tokens-per-s", 700) as addresses, \
            bench.router(addresses, "--api-keys-file", keys) as side:
        side.await_ready()

        def quiet():
            return bench.load(side.port, bodies, seconds, 1, key="quiet")
        alone = quiet()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            flood = pool.submit(bench.load, side.port, bodies, 20 * seconds, 20, key="flood")
            beside_flood = quiet()
            flooding = flood.result()
    p99 = [seen["ttft_ms"]["p99"] for seen in (alone, beside_flood, flooding)]
    return [row("fairness: TTFT p99 alone", p99[0], "ms"),
            row("fairness: TTFT p99 beside a flood", p99[1], "ms"),
            row("fairness: TTFT p99 of the flood", p99[2], "ms"),
            row("fairness: beside a flood, of alone", p99[1] / p99[0], "x"),
            row("fairness: answered", answered(beside_flood), "%")]


def run(arguments, folder):
    bench = Bench(arguments, folder)
    if arguments.tls:
        return tls_cost.rows(bench, arguments.quick)
    only = arguments.only.split(",")
    rows = []
    steady = {"A": workload_a, "B": workload_b, "C": workload_c, "D": workload_d}
    with contextlib.ExitStack() as stack:
        addresses = stack.enter_context(bench.mock())
        sides = [stack.enter_context(bench.router(addresses)).await_ready()]
        if not arguments.no_nginx:
            proxy = stack.enter_context(nginx.Nginx(bench.folder / "nginx", addresses["upstream"],
                                                    bench.on_router_core))
            sides.append(Side(proxy.process.pid, f"http://127.0.0.1:{proxy.port}"))
        bench.load(sides[0].port, bench.bodies("warm-up", 20, 800, ANSWER), 20, 100)
        for name, workload in steady.items():
            if name in only:
                rows += workload(bench, sides, arguments.quick)
    for name, workload in {"E": workload_e, "memory": workload_memory, "overload": overload,
                           "refusals": refusals, "fairness": fairness}.items():
        if name in only:
            rows += workload(bench, arguments.quick)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--only", help="default: all but memory, which takes 15 minutes; with "
                        f"--quick all: {','.join(WORKLOADS)}")
    parser.add_argument("--capacity", type=int, default=300,
                        help="requests a second of the overloaded workers")
    parser.add_argument("--tls", action="store_true",
                        help="in place of these: A and D with workers over mutual TLS beside plaintext "
                        "ones, in turn")
    parser.add_argument("--no-nginx", action="store_true", help="without the yardstick")
    parser.add_argument("--quick", action="store_true", help="seconds, without nginx")
    parser.add_argument("--json", action="store_true", help="for machines")
    arguments = parser.parse_args()
    if arguments.only is None:
        arguments.only = ",".join(w for w in WORKLOADS if arguments.quick or w != "memory")
    if unknown := set(arguments.only.split(",")) - set(WORKLOADS):
        parser.error(f"--only {','.join(unknown)}: choose from {', '.join(WORKLOADS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments.no_nginx |= arguments.quick or arguments.tls
    if not arguments.no_nginx and nginx.program() is None:
        nginx.fetch()
    with tempfile.TemporaryDirectory(prefix="baton-router-bench-") as folder:
        rows = run(arguments, folder)
    print_report("router", f"one core, {ANSWER} tokens every {PACE_MS} ms unless said otherwise",
                 rows, arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
