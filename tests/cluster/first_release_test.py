#!/usr/bin/env python3
"""Programs of the first release, which speak protocol 1, beside those of this one, under clients that
know every answer: a cluster of it is upgraded worker by worker, and its router last.

Usage: first_release_test.py FOLDER_OF_PROGRAMS [--old-build FOLDER] [unittest arguments]; FOLDER has
baton-router, baton-prefill and baton-decode of the first release, and is BATON_OLD_BUILD where it
is not given. Without either nothing can be tried.
"""
import os
import pathlib
import sys
import threading
import unittest

from api_client import HttpError
from known_answers import WORDS, KnownAnswers, Load, make_requests
from process_cluster import ProcessCluster, Server, await_true

BIN = OLD = None
# Options that came later.
LATER = {"--max-queue-wait-s", "--ops-port", "--tp"}
ADDRESSES = "--advertise-data-address"  # Of later releases one of each rank.


class ServerOfItsRelease(Server):
    def options(self):
        words = super().options()
        if self.bin != OLD:
            return words
        pairs = zip(words[::2], words[1::2], strict=True)
        return [word for flag, value in pairs if flag not in LATER
                for word in (flag, value.split(",")[0] if flag == ADDRESSES else value)]

    def told(self, ready):
        if self.role != "router":
            ready.setdefault("data_addresses", [ready["data_address"]])
        return ready


class MixedCluster(ProcessCluster):
    server_class = ServerOfItsRelease

    def to_new(self, server):
        """Upgrades a server, and a decode worker from one rank to two."""
        server.bin = BIN
        # A router's metrics were on the API's port; where one rank listened two need more room.
        server.ports = [*server.ports[:4], "--ops-port" if server.role == "router" else "--data-port", "0"]
        self.restart(server)


class Scored:
    """A client that asks for scored prompts, one after the other, and knows every score."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.requests = [dict(prompt=" ".join(WORDS[i:i + length]), echo=True, logprobs=2,
                              temperature=0, max_tokens=tokens)
                         for i, (length, tokens) in enumerate([(5, 0), (15, 1), (17, 12), (8, 6)])]
        self.requests[1]["prompt"] = " ".join(WORDS * 18)  # Of several chunks.
        self.expected = [self.ask(request) for request in self.requests]
        self.num_asked, self.wrong = 0, []
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def ask(self, request):
        choice = self.cluster.post("/v1/completions", **request)["choices"][0]
        return choice["text"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]

    @staticmethod
    def is_same(answer, expected):
        """The first release added up in another order, so the last bits of scores differ."""
        return answer[:2] == expected[:2] and len(answer[2]) == len(expected[2]) and all(
            a == b or (a is not None and b is not None and abs(a - b) < 1e-3)
            for a, b in zip(answer[2], expected[2]))

    def run(self):
        while not self.stopping.is_set():
            for request, expected in zip(self.requests, self.expected):
                try:
                    answer = self.ask(request)
                    if not self.is_same(answer, expected):
                        self.wrong.append(f"{answer} instead of {expected}")
                except (HttpError, OSError) as error:
                    self.wrong.append(f"{request}: {error}")
                self.num_asked += 1

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join(120)


class FirstReleaseTest(unittest.TestCase):
    def setUp(self):
        if OLD is None:
            self.skipTest("no programs of the first release: --old-build, BATON_OLD_BUILD")

    def answer(self, load, number=10):
        """Until so many further answers have come."""
        before = len(load.outcomes)
        await_true(lambda: len(load.outcomes) >= before + number, 120,
                   lambda: f"{number} answers; {load.kinds()}")

    def check(self, cluster, load):
        load.stop()
        self.assertEqual(load.failures(), [])
        self.assertEqual(cluster.await_quiet(), {})

    def test_a_cluster_is_upgraded_worker_by_worker_and_its_router_last(self):
        with MixedCluster(OLD, "first_release", decode_tp=2) as cluster:
            (p0, p1), (d0, d1) = cluster.prefill, cluster.decode
            known = KnownAnswers(cluster, make_requests(32))
            scored = Scored(cluster)
            with Load(cluster, known, seed=1) as load, scored:
                self.answer(load)
                cluster.to_new(d0)
                self.answer(load)  # Nobody pairs with it yet.
                cluster.to_new(p0)
                self.answer(load)
                cluster.to_new(p1)  # The last that the old decode worker pairs with.
                self.answer(load)
                await_true(lambda: d0.metric("baton_handoffs_total") > 4, 60, "the new pair is used")
                cluster.to_new(d1)
                await_true(lambda: d1.metric("baton_handoffs_total") > 4, 60, "all are new")
                self.check(cluster, load)
            self.assertEqual(scored.wrong, [])
            self.assertGreater(scored.num_asked, 8)
            failed = cluster.metric("baton_handoff_failures_total")
            self.assertLess(failed, 5)

            cluster.to_new(cluster.router)
            with Load(cluster, known, seed=2) as load:
                self.answer(load, 30)
                self.check(cluster, load)

    def test_a_new_router_names_old_workers_and_serves_by_the_others(self):
        with MixedCluster(OLD, "first_release_router", decode_tp=2) as cluster:
            (p0, p1), (d0, d1) = cluster.prefill, cluster.decode
            known = KnownAnswers(cluster, make_requests(32))
            for server in (p0, d0):
                cluster.to_new(server)
            cluster.to_new(cluster.router)
            for server in (p1, d1):
                self.assertFalse(cluster.said_of(server)["healthy"])
                self.assertRegex(cluster.said_of(server)["reason"],
                                 r"^it speaks protocol 1, this router \d to \d; update the older one$")
            self.assertIn("it speaks protocol 1", cluster.router.last_log())
            with Load(cluster, known, seed=3) as load:
                self.answer(load, 30)
                for server in (p1, d1):
                    cluster.to_new(server)
                self.answer(load, 30)
                self.check(cluster, load)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    old = os.environ.get("BATON_OLD_BUILD")
    if "--old-build" in sys.argv:
        at = sys.argv.index("--old-build")
        old = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    OLD = pathlib.Path(old).resolve() if old else None
    unittest.main(verbosity=2)
