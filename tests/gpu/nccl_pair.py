#!/usr/bin/env python3
"""K/V over NCCL between workers that share GPU 0: the bits are those of TCP, and a worker that is
killed costs no token and leaves nothing held.

Usage: nccl_pair.py PACK [--out FILE]      FILE gets a line of JSON a row
       nccl_pair.py PACK --quick [...]     short requests, and no prefill worker killed
NCCL is what $BATON_NCCL_LIBRARY names; the environment must let it have two ranks on one GPU.
Standard library only.
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "cluster"), str(HERE.parent / "bench")]
from api_client import metric_sum  # noqa: E402
from emulated_test import (FAST, REQUESTS, answers_of, ask, fault_amid,  # noqa: E402
                           kill_amid_handoffs, prompt)
from process_cluster import await_true  # noqa: E402
from report import print_report, row  # noqa: E402
from running_cluster import RunningCluster  # noqa: E402

MAX_TRIES = 5
UP_LIMIT_S = 45  # Of a communicator ten seconds are allowed.
LOG_CHARS = 4000


def check(holds, text):
    if not holds:
        raise AssertionError(text)


class Pair:
    """What all stages have in common; gathers rows."""

    def __init__(self, pack, quick, out):
        self.pack, self.quick, self.out = pack, quick, out
        self.blocks = 64 if quick else 512
        self.rows = []

    def note(self, name, value, unit):
        self.rows.append(row(name, value, unit))
        self.out.write(json.dumps(self.rows[-1]) + "\n")
        self.out.flush()

    @contextlib.contextmanager
    def cluster(self, name, transport, **options):
        """Its logs are shown if what is done with it fails."""
        cluster = RunningCluster(
            self.pack / "bin/baton", name, device="cuda", num_blocks=self.blocks, threads=1,
            max_model_len=4 * self.blocks, gpu_graphs="off", kv_transport=transport, **options)
        try:
            yield cluster.__enter__()
        except BaseException:
            for log in sorted((cluster.dir / "logs").glob("*.log")):
                print(f"---- {name} {log.name}\n{log.read_text(errors='replace')[-LOG_CHARS:]}")
            raise
        finally:
            cluster.__exit__()

    @staticmethod
    def sum_of(cluster, role, name, **labels):
        return sum(metric_sum(w["metrics_url"], name, **labels) for w in cluster.workers(role))

    def await_links(self, cluster, count):
        """Until so many connections carry K/V over NCCL, and none over TCP; seconds. Requests make
        them, some at once so that each worker gets one."""
        begin = time.monotonic()
        for salt in range(10**6):
            answers_of(cluster, [dict(REQUESTS[0], prompt=prompt(20, salt=100 + count * salt + i),
                                      max_tokens=2) for i in range(count)])
            links = [self.sum_of(cluster, "prefill", "baton_kv_links", transport=transport)
                     for transport in ("nccl", "tcp")]
            if links == [count, 0]:
                return time.monotonic() - begin
            check(time.monotonic() < begin + (200 if self.quick else UP_LIMIT_S),
                  f"error: K/V does not go over NCCL: {links} connections over NCCL and TCP\n"
                  f"{cluster.baton('status', check=False).stdout}")
            time.sleep(0.1)

    def await_nothing_held(self, cluster):
        held = cluster.await_quiet(self.blocks, seconds=60)
        check(held == [], f"error: held: {held}")
        await_true(lambda: not self.sum_of(cluster, None, "baton_nccl_held_slots"), 30,
                   "no batch holds a slot")
        leaked = self.sum_of(cluster, None, "baton_nccl_leaked_slots")
        check(leaked == 0, f"error: {leaked} slots are leaked")

    def handoffs(self, cluster, request, transport):
        """The answer; what its handoff took is noted."""
        def read():
            return [self.sum_of(cluster, "decode", f"baton_kv_transfer_{name}")
                    for name in ("bytes_total", "seconds_sum", "seconds_count")]
        before = read()
        answer = ask(cluster, request)
        size, seconds, count = (b - a for a, b in zip(before, read()))
        if count:
            self.note(f"handoff over {transport}, its size", size / count / 1e6, "MB")
            self.note(f"handoff over {transport}", 1e3 * seconds / count, "ms")
        return answer

    def compare(self):
        few = REQUESTS[2:4] if self.quick else REQUESTS
        length = 40 if self.quick else 1500
        long = [dict(REQUESTS[0], prompt=prompt(length, salt=20 + i)) for i in range(2)]
        with self.cluster("nccl-off", "tcp") as cluster:
            expected = answers_of(cluster, few, together=False)
            expected += [self.handoffs(cluster, request, "tcp") for request in long]
        with self.cluster("nccl-on", "nccl") as cluster:
            self.note("first request to the pair being up", self.await_links(cluster, 1), "s")

            def carried():
                return [self.sum_of(cluster, "decode", "baton_kv_transport_bytes_accepted_total",
                                    transport=transport) for transport in ("nccl", "tcp")]
            before = carried()
            answers = answers_of(cluster, few, together=False)
            answers += [self.handoffs(cluster, request, "NCCL") for request in long]
            by_nccl, by_tcp = (b - a for a, b in zip(before, carried()))
            self.note("K/V over NCCL", by_nccl / 1e6, "MB")
            status = cluster.baton("status", check=False).stdout
            print(*(line for line in status.splitlines() if "K/V" in line), sep="\n")
            print(*[line for line in cluster.log("prefill-0").splitlines() if " via " in line][:4],
                  sep="\n")
            check(answers == expected, "error: the answers are not those over TCP")
            check(by_nccl > 0 and by_tcp == 0,
                  f"error: {by_nccl} bytes went over NCCL, {by_tcp} over TCP\n{status}")
            check("prefill-0 -> decode-0: K/V over NCCL" in status, f"error: {status}")
            self.await_nothing_held(cluster)

    def note_pairs(self, cluster, killed):
        for name in ("failed", "stuck"):
            self.note(f"{killed} killed: pairs {name}",
                      self.sum_of(cluster, None, f"baton_nccl_pairs_{name}_total"), "")

    def kill_decode(self):
        request = dict(REQUESTS[2], max_tokens=30 if self.quick else 1500)
        with self.cluster("nccl-decode", "nccl", decode=2) as cluster:
            self.await_links(cluster, 2)
            expected = ask(cluster, request)[0]
            for _ in range(MAX_TRIES):
                check(fault_amid(cluster, request, signal.SIGKILL) == expected,
                      "error: the answer of a stream whose worker was killed is another")
                if cluster.metric("baton_moves_total"):
                    break
            else:
                check(False, "error: no stream lost its worker before it had ended")
            self.await_nothing_held(cluster)
            self.note("decode killed: all pairs up again after", self.await_links(cluster, 2), "s")
            check(ask(cluster, request)[0] == expected, "error: afterwards the answer is another")
            self.note_pairs(cluster, "decode")

    def kill_prefill(self):
        """Amid handoffs: what was posted for it never comes."""
        with self.cluster("nccl-prefill", "nccl", prefill=2, chunk_tokens=8) as cluster:
            self.await_links(cluster, 2)
            for n in range(MAX_TRIES):
                requests = [dict(REQUESTS[0], prompt=prompt(1000, salt=6 * n + i))
                            for i in range(6)]
                answers = kill_amid_handoffs(cluster, requests)
                self.await_nothing_held(cluster)
                check(answers == answers_of(cluster, requests, together=False),
                      "error: answers whose prefill worker was killed are others")
                if cluster.metric("baton_moves_total"):
                    break
            else:
                check(False, "error: no handoff lost its worker")
            self.note("prefill killed: all pairs up again after", self.await_links(cluster, 2), "s")
            self.note_pairs(cluster, "prefill")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pack", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=os.devnull)
    arguments = parser.parse_args()
    os.environ["BATON_EMULATED_GPU"] = FAST  # For an emulated one.
    # A part that is stopped leaves no cluster on the GPU.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with open(arguments.out, "a", encoding="utf-8") as out:
        pair = Pair(arguments.pack.resolve(), arguments.quick, out)
        stages = [pair.compare, pair.kill_decode] + ([] if arguments.quick else [pair.kill_prefill])
        for stage in stages:
            begin = time.monotonic()
            stage()
            print(f"{stage.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    print_report("nccl", "prefill and decode workers on one GPU", pair.rows, False)
    print(f"{len(stages)} stages, {len(pair.rows)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
