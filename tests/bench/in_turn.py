#!/usr/bin/env python3
"""Two ways to compute one model, in turn: --tp T beside one rank with as many threads, or this build
beside the bench_engine of another.

Each round runs the first, the second and the first again, the order turned round every other time.
A row is the median over the rounds of second : first; "first : itself" is that of the two runs of the
first, and its spread is what this machine's noise looks like: a difference within it is none.
Exit code 1: a row's median is below the goal by more than half of that spread.

Usage: in_turn.py --tp 2 --goal 0.95
       in_turn.py --before OTHER/bench_engine --goal 0.99
"""
import argparse
import pathlib
import statistics
import sys

import programs
from report import print_report, row


def ratio_rows(rounds):
    """Of [(first, second, first again)], each {row: value}: the rows of the report by name."""
    rows = {}
    for name in rounds[0][0]:
        beside = [second[name] / statistics.mean((first[name], again[name]))
                  for first, second, again in rounds]
        itself = [again[name] / first[name] for first, _, again in rounds]
        rows[name] = (statistics.median(beside), spread(beside), statistics.median(itself),
                      spread(itself))
    return rows


def spread(ratios):
    """Between the quartiles; of few, between all."""
    if len(ratios) < 4:
        return max(ratios) - min(ratios)
    first, _, third = statistics.quantiles(ratios, n=4)
    return third - first


def measure(program, options, *more):
    """{row: tokens a second} of one run of the program."""
    rows = programs.rows_of(program, "--model", options.model, "--models", options.models,
                            "--threads", options.threads, "--repeats", options.repeats,
                            *(["--work", options.work] if options.work else []),
                            *(["--quick"] if options.quick else []), *more)
    return {name: entry["value"] for name, entry in rows.items()
            if " prefill " in name or " decode " in name}


def take_rounds(options, out):
    own = options.build / "bench" / "bench_engine"
    more = ["--tp", options.tp] if options.tp else []
    first = options.before or own
    for program in (own, first):
        if not program.exists():
            raise RuntimeError(f"{program} is missing; cmake --build {options.build} --target "
                               "bench_engine, or name another")

    def run(is_second):
        return measure(own, options, *more) if is_second else measure(first, options)
    rounds = []
    for i in range(options.rounds):
        if i % 2 == 0:
            taken = run(False), run(True), run(False)
        else:
            again, second, before = run(False), run(True), run(False)
            taken = before, second, again
        rounds.append(taken)
        print(f"round {i + 1} of {options.rounds}", file=out, flush=True)
    return rounds


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    programs.add_options(parser, models=("125M", "1B", "MoE"))
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--tp", type=int, choices=(2, 4, 8), help="ranks of the second")
    which.add_argument("--before", type=pathlib.Path, help="the first: another bench_engine")
    parser.add_argument("--work", default="", help="only rows with this in their name")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--goal", type=float, default=0.0, help="of second : first")
    options = parser.parse_args()
    try:
        rows = ratio_rows(take_rounds(options, sys.stderr))
    except RuntimeError as error:
        print(f"in_turn.py: {error}", file=sys.stderr)
        return 2
    entries, missed = [], False
    for name, (beside, beside_spread, itself, itself_spread) in rows.items():
        entry = row(f"{name}, second : first", beside, "ratio")
        entry.update(spread=beside_spread)
        if options.goal:
            met = beside >= options.goal - itself_spread / 2
            missed |= not met
            entry.update(goal=f">= {options.goal}", met=met)
        entries += [entry, {**row(f"{name}, first : itself", itself, "ratio"),
                            "spread": itself_spread}]
    what = f"--tp {options.tp}" if options.tp else f"beside {options.before}"
    best = 1 if options.quick else options.repeats
    print_report("in_turn", f"{what}, {options.threads} threads, {options.rounds} rounds, best of "
                 f"{best} each", entries, options.json)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
