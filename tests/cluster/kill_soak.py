#!/usr/bin/env python3
"""Random kills, stops and cut links of live workers under clients that know every answer.

Usage: see soak.sh, which builds the programs and runs this. Prints a table; --json writes it too.
Exits 1 if a request was lost, hung or wrong, a block leaked, or a healthy worker was ejected.

    detection  from the fault until the router's GET /status no longer calls the worker healthy
               (looked at every 10 ms; a stop or cut that heals before is counted as undetected)
    recovery   from the fault until every stream that was open then has had another token or its end
"""
import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

from known_answers import KnownAnswers, Load, make_requests
from process_cluster import ProcessCluster, await_true, process_state

CLIENTS = 6
PAUSE_S = (0.2, 1.5)       # Between two faults.
RESTART_S = (0.1, 1.0)     # From a kill to the restart.
STOP_S = (1.0, 8.0)
SATURATED_S = 20
HEALTHY_LIMIT_S = 30


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def summary(values):
    """p50, p99 and maximum in milliseconds."""
    ms = [round(v * 1000) for v in values]
    return {"count": len(ms), "p50_ms": percentile(ms, 0.5), "p99_ms": percentile(ms, 0.99),
            "max_ms": max(ms, default=None)}


class Fault:
    """One fault: when it was, and when the router was seen to have noticed."""

    def __init__(self, kind, server):
        self.kind, self.name, self.at = kind, server.name, time.monotonic()
        self.detected_at = None


class Breaker:
    def __init__(self, cluster, draw):
        self.cluster, self.draw = cluster, draw
        self.faults = []
        self.misses = 0  # Cuts of a link without a connection: no faults.

    def watch(self, fault, server, incarnation, healed):
        """Notes when the router calls this life of the worker unhealthy, until `healed` is set."""
        while not healed.is_set() and fault.detected_at is None:
            said = self.cluster.said_of(server)
            if not said["healthy"] or said["incarnation"] != incarnation:
                fault.detected_at = time.monotonic()
            time.sleep(0.01)

    def one_fault(self, server, kind):
        """The fault, its end, and the wait until the router uses the worker again."""
        incarnation = self.cluster.said_of(server)["incarnation"]
        healed = threading.Event()
        fault, is_real = Fault(kind, server), True
        watcher = threading.Thread(target=self.watch, args=(fault, server, incarnation, healed))
        if kind == "kill":
            server.signal(signal.SIGKILL)
            watcher.start()
            server.await_exit()
            time.sleep(self.draw.uniform(*RESTART_S))
            server.launch()
            server.await_start()
        elif kind == "stop":
            server.signal(signal.SIGSTOP)
            watcher.start()
            await_true(lambda: process_state(server.pid) == "T", 5, f"{server.name} is stopped")
            time.sleep(self.draw.uniform(*STOP_S))
            server.signal(signal.SIGCONT)
        else:
            proxy = server.control if kind == "cut control" else server.data
            watcher.start()
            is_real = proxy.cut() > 0
            # No transfer may have used the link of K/V since it was cut last.
            assert is_real or kind == "cut K/V", f"{server.name}: no connection to cut"
            healed.wait(0.5 if is_real else 0)
        healed.set()
        watcher.join()
        if is_real:
            self.faults.append(fault)
        else:
            self.misses += 1
        self.cluster.await_healthy(server, HEALTHY_LIMIT_S)

    def run(self, kills, until):
        """Faults until so many kills were made. Three in five are kills."""
        done = 0
        while done < kills and time.monotonic() < until:
            time.sleep(self.draw.uniform(*PAUSE_S))
            # One at a time, so never the last of its kind.
            server = self.draw.choice(self.cluster.workers)
            cut = self.draw.choice(["cut control", "cut K/V"] if server.data else ["cut control"])
            kind = self.draw.choice(["kill", "kill", "kill", "stop", cut])
            self.one_fault(server, kind)
            done += kind == "kill"
        return done


def recoveries(fault, outcomes):
    """Seconds until each stream that was open at the fault went on."""
    for o in outcomes:
        if o.began < fault.at < o.ended:
            yield min((t for t in o.times if t > fault.at), default=o.ended) - fault.at


def figures_of(faults, outcomes):
    figures = {}
    for kind in ("kill", "stop", "cut control", "cut K/V"):
        of_kind = [f for f in faults if f.kind == kind]
        slowest = [max(recoveries(f, outcomes), default=0.0) for f in of_kind]
        figures[kind] = {
            "faults": len(of_kind),
            "undetected": sum(f.detected_at is None for f in of_kind),
            "detection": summary([f.detected_at - f.at for f in of_kind if f.detected_at]),
            "recovery": summary(slowest)}
    return figures


def ejections(cluster):
    """(fences by the router, workers that it does not call healthy)."""
    unhealthy = [w["address"] for w in cluster.get("/status")["workers"] if not w["healthy"]]
    return cluster.metric("baton_fenced_workers_total"), unhealthy


def saturated(cluster, known, seconds):
    """Healthy workers while both cores are busy with something else: (ejections, outcomes)."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
             for _ in range(os.cpu_count() or 2)]
    try:
        before = ejections(cluster)[0]
        unhealthy = 0
        with Load(cluster, known, CLIENTS, seed="saturated") as load:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                unhealthy += len(ejections(cluster)[1])
                time.sleep(0.1)
        return ejections(cluster)[0] - before + unhealthy, load.outcomes
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def rolling_restart(cluster, known):
    """Each worker in turn, as an operator would: the outcomes of the clients meanwhile."""
    with Load(cluster, known, CLIENTS, seed="rolling") as load:
        for server in cluster.workers:
            cluster.restart(server)
    return load.outcomes


def count(outcomes):
    lost = [o for o in outcomes if o.kind in ("error", "broken", "hung", "wrong")]
    return {"requests": len(outcomes), "lost": len(lost),
            "hung": sum(o.kind == "hung" for o in outcomes),
            "wrong_tokens": sum(o.num_wrong for o in outcomes),
            "duplicated_tokens": sum(o.num_duplicated for o in outcomes),
            "first_losses": [f"{o.kind}: {o.detail[:300]}" for o in lost[:5]]}


def soak(arguments):
    draw = random.Random(arguments.seed)
    result = {"kills_wanted": arguments.kills, "seed": arguments.seed, "cores": os.cpu_count()}
    with ProcessCluster(arguments.bin, "kill-soak", worker={"num_blocks": 192}) as cluster:
        known = KnownAnswers(cluster, make_requests(48, seed=arguments.seed))
        begin = time.monotonic()
        breaker = Breaker(cluster, draw)
        with Load(cluster, known, CLIENTS, seed=arguments.seed) as load:
            result["kills"] = breaker.run(arguments.kills, begin + 60 * arguments.minutes)
        result["minutes"] = round((time.monotonic() - begin) / 60, 1)
        result["under_faults"] = count(load.outcomes)
        result["lost_per_1000_kills"] = round(
            1000 * result["under_faults"]["lost"] / max(1, result["kills"]), 1)
        result["by_kind"] = figures_of(breaker.faults, load.outcomes)
        result["cuts_of_nothing"] = breaker.misses
        result["false_ejections"], outcomes = saturated(cluster, known, arguments.saturated_s)
        result["saturated"] = count(outcomes)
        result["rolling_restart"] = count(rolling_restart(cluster, known))
        held = cluster.await_quiet()
        result["blocks_leaked"] = sum(sum(states.values()) for states in held.values())
        result["audit_exit_code"], result["audit"] = cluster.audit()
    return result


def table(result):
    lines = [f"seed {result['seed']}, {result['cores']} cores, {result['minutes']} minutes"]
    rows = [("kills", result["kills"]), ("requests", result["under_faults"]["requests"]),
            ("requests lost per 1,000 kills", result["lost_per_1000_kills"])]
    rows += [(key.replace("_", " "), sum(result[phase][key] for phase in
                                         ("under_faults", "saturated", "rolling_restart")))
             for key in ("lost", "hung", "wrong_tokens", "duplicated_tokens")]
    rows += [("cuts that met no connection, not counted", result["cuts_of_nothing"]),
             ("blocks leaked", result["blocks_leaked"]),
             ("exit code of baton audit", result["audit_exit_code"]),
             ("healthy workers ejected, cores saturated", result["false_ejections"]),
             ("failed in the rolling restart", result["rolling_restart"]["lost"])]
    lines += [f"  {name:44} {value:>8g}" for name, value in rows]
    lines.append(f"  {'ms':24} {'faults':>7} {'unseen':>7} {'detection p50/p99/max':>24} "
                 f"{'recovery p50/p99/max':>24}")
    for kind, of in result["by_kind"].items():
        text = ["/".join(str(of[what][key]) for key in ("p50_ms", "p99_ms", "max_ms"))
                for what in ("detection", "recovery")]
        lines.append(f"  {kind:24} {of['faults']:>7} {of['undetected']:>7} {text[0]:>24} "
                     f"{text[1]:>24}")
    for phase in ("under_faults", "saturated", "rolling_restart"):
        lines += [f"  {phase}: {loss}" for loss in result[phase]["first_losses"]]
    return "\n".join(lines)


def is_good(result):
    phases = [result[phase] for phase in ("under_faults", "saturated", "rolling_restart")]
    return (not any(phase["lost"] or phase["duplicated_tokens"] for phase in phases) and
            not result["blocks_leaked"] and not result["false_ejections"] and
            result["audit_exit_code"] == 0 and result["kills"] == result["kills_wanted"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="Folder of the programs")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="Of requests, faults and their times")
    parser.add_argument("--minutes", type=float, default=60, help="Limit of the kills")
    parser.add_argument("--saturated-s", type=float, default=SATURATED_S,
                        help="Length of the phase with a busy loop per core, seconds")
    parser.add_argument("--json", type=pathlib.Path, help="Write the figures to this file too")
    arguments = parser.parse_args()
    result = soak(arguments)
    print(table(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    print("PASS" if is_good(result) else "FAIL")
    return 0 if is_good(result) else 1


if __name__ == "__main__":
    sys.exit(main())
