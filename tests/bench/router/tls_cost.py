"""What the control plane's mutual TLS costs a router: two routers with workers of their own, one pair in
plaintext and one over TLS, under the same load in turn.
"""
import contextlib
import statistics

from router_side import ANSWER, TICKS, measured, num_answered
from report import row

PAIRS = 7


def median_rows(name, unit, plain, tls):
    """Of a figure in each pair of runs: both medians, and what TLS takes of plaintext, pair by pair,
    with its quartiles, as the machine's noise is that of single runs."""
    ratios = sorted(100 * t / p for p, t in zip(plain, tls))
    low, high = (statistics.quantiles(ratios, n=4)[i] for i in (0, 2)) if len(ratios) > 1 else (
        ratios * 2)
    return [row(f"{name} plaintext", statistics.median(plain), unit),
            row(f"{name} TLS", statistics.median(tls), unit),
            row(f"{name} TLS, of plaintext", statistics.median(ratios), "%"),
            row(f"{name} TLS, of plaintext, first quartile", low, "%"),
            row(f"{name} TLS, of plaintext, third quartile", high, "%")]


def in_turn(bench, sides, pairs, *load):
    """[(CPU seconds, what the clients saw)] of each side, one run of each in every pair. No run takes
    less than a tick of the kernel's account."""
    seen = ([], [])
    for pair in range(pairs):
        for which in ((0, 1), (1, 0))[pair % 2]:
            cpu, one = measured(bench, sides[which], *load)
            seen[which].append((max(cpu, 1 / TICKS), one))
    return seen


def cost_of_requests(bench, sides, pairs, quick):
    rate, requests = (50, 40) if quick else (300, 2400)
    bodies = bench.bodies("A", min(requests, 2000), 800, ANSWER)
    seen = in_turn(bench, sides, pairs, bodies, requests, rate)
    name = f"A {rate}/s"
    cpu = [[1e3 * cpu / max(1, num_answered(one)) for cpu, one in side] for side in seen]
    rows = median_rows(f"{name} CPU per 1,000 answers", "s", *cpu)
    for point in ("p50", "p99"):
        ttft = [[one["ttft_ms"][point] for _, one in side] for side in seen]
        for side, values in zip(("plaintext", "TLS"), ttft):
            rows.append(row(f"{name} TTFT {point} {side}", statistics.median(values), "ms"))
    return [*rows, all_answered(name, seen)]


def cost_of_streams(bench, sides, pairs, quick):
    streams, tokens = (4, 20) if quick else (64, 300)
    bodies = bench.bodies("D", streams, 200, tokens)
    seen = in_turn(bench, sides, pairs, bodies, streams, 0)
    cpu = [[1e6 * cpu / (streams * tokens) for cpu, _ in side] for side in seen]
    return [*median_rows("D CPU per 1,000,000 relayed tokens", "s", *cpu), all_answered("D", seen)]


def all_answered(name, seen):
    runs = [one for side in seen for _, one in side]
    return row(f"{name} answered", 100 * sum(map(num_answered, runs)) / sum(
        one["sent"] for one in runs), "%")


def rows(bench, quick):
    pairs = 1 if quick else PAIRS
    certificates = bench.certificates()
    with contextlib.ExitStack() as stack:
        sides = []
        for mock, router in (((), ()), (("--certs", certificates),
                                        ("--tls-dir", certificates / "router"))):
            addresses = stack.enter_context(bench.mock(*mock))
            sides.append(stack.enter_context(bench.router(addresses, *router)).await_ready())
        for side in sides:
            bench.load(side.port, bench.bodies("warm-up", 20, 800, ANSWER), 20, 100)
        return [*cost_of_requests(bench, sides, pairs, quick),
                *cost_of_streams(bench, sides, pairs, quick)]
