#!/usr/bin/env python3
"""This release's workers under a router of the first one (protocol 1: commit babab72), under clients
that know every answer: an upgrade worker by worker, its router last. Not in any test run, for it
needs programs of that commit; what its router says is recorded in tests/golden/wire/protocol_1.txt.

Usage: first_release.py FOLDER_OF_PROGRAMS FOLDER_OF_FIRST_PROGRAMS [unittest arguments]
"""
import concurrent.futures
import json
import pathlib
import signal
import sys
import time
import unittest

from known_answers import KnownAnswers, Load, make_requests
from process_cluster import ProcessCluster, await_true

BIN = FIRST = None
UNKNOWN_THEN = ("--tp", "--max-queue-wait-s", "--ops-port")  # With a value each.


def as_then(arguments):
    """Without the options that the first release did not have."""
    kept, words = [], iter(map(str, arguments))
    for word in words:
        if word in UNKNOWN_THEN:
            next(words)
        else:
            kept.append(word)
    return kept


class FirstCluster(ProcessCluster):
    """All of the first release, until a server's `bin` says otherwise."""

    def __init__(self, name, **sizes):
        super().__init__(FIRST, name, **sizes)
        for server in [self.router, *self.workers]:
            self.adapt(server)
        self.dir = BIN.parent / "run" / name

    def adapt(self, server):
        launch, await_start = server.launch, server.await_start

        def launch_either(*fail_point):
            arguments, ports = server.arguments, server.ports
            if server.bin == FIRST:
                server.arguments, server.ports = as_then(arguments), as_then(ports)
            launch(*fail_point)
            server.arguments, server.ports = arguments, ports

        def await_either():
            ready_file = self.dir / "ready" / f"{server.name}.json"
            if server.bin == FIRST and server.role != "router":
                # It told one data address where later ones tell a list.
                await_true(ready_file.exists, 60, f"{server.name} listens")
                ready = json.loads(ready_file.read_text())
                ready["data_addresses"] = [ready["data_address"]]
                ready_file.write_text(json.dumps(ready))
            elif server.bin == FIRST:
                server.ports = []
            await_start()
        server.launch, server.await_start = launch_either, await_either


class EitherAnswers(KnownAnswers):
    """What the first release answers, or this one: who computes one computes all of it."""

    def __init__(self, cluster, requests, of_this_release):
        super().__init__(cluster, requests)
        self.of_this_release = of_this_release

    def ask(self, cluster, index, leave_after=None):
        outcome = super().ask(cluster, index, leave_after)
        of_this = f"request {index}: {self.of_this_release[index][0]} instead"
        if outcome.kind == "wrong" and outcome.detail.startswith(of_this):
            outcome.kind, outcome.num_wrong, outcome.num_duplicated = "ok", 0, 0
        return outcome


def greedy(requests):
    return [{**request, "temperature": 0} for request in requests]


class FirstReleaseTest(unittest.TestCase):
    def upgrade(self, server):
        server.bin = BIN
        self.cluster.restart(server)

    def serve(self, load, *decode):
        """Until each of these has taken over further prompts, and more answers have come."""
        before = {server: server.metric("baton_handoffs_total") for server in decode}
        number = len(load.outcomes)
        await_true(lambda: len(load.outcomes) > number + 8 and
                   all(s.metric("baton_handoffs_total") > n + 2 for s, n in before.items()),
                   120, lambda: f"answers and handoffs; {load.kinds()}")

    def answers(self, name, of_this_release, requests):
        with FirstCluster(name, prefill=1, decode=1) as cluster:
            if of_this_release:
                self.cluster = cluster
                for server in cluster.workers:
                    self.upgrade_alone(server)
                cluster.await_ready()
            known = KnownAnswers(cluster, requests).answers
            scored = cluster.post("/v1/completions", prompt="In the beginning God created",
                                  max_tokens=4, temperature=0, echo=True, logprobs=2)
            return known, scored["choices"][0]["logprobs"]

    def upgrade_alone(self, server):
        """Without waiting for the router to use it."""
        server.bin = BIN
        server.signal(signal.SIGTERM)
        self.assertEqual(server.await_exit(30), 0)
        server.launch()
        server.await_start()

    def test_answers_are_those_of_a_cluster_of_the_first_release(self):
        requests = make_requests(16)
        requests += greedy(requests)
        (first, first_scores) = self.answers("first-all", False, requests)
        (this, these_scores) = self.answers("first-router", True, requests)
        equal = [a == b for a, b in zip(first, this)]
        print(f"equal answers: {sum(equal[:16])} of 16 sampled, {sum(equal[16:])} of 16 greedy",
              file=sys.stderr)
        self.assertEqual(first[16:], this[16:])
        self.assertEqual(first_scores["tokens"], these_scores["tokens"])
        for one, other in zip(first_scores["token_logprobs"], these_scores["token_logprobs"]):
            self.assertAlmostEqual(one or 0, other or 0, places=4)

    def test_an_upgrade_from_the_first_release_costs_no_request(self):
        requests = make_requests(24)
        of_this_release, _ = self.answers("first-known", True, requests)
        with FirstCluster("first-upgrade") as self.cluster:
            cluster = self.cluster
            (p0, p1), (d0, d1) = cluster.prefill, cluster.decode
            known = EitherAnswers(cluster, requests, of_this_release)
            with Load(cluster, known, seed=1) as load:
                for server, pairs in ((d0, (d1,)), (p0, (d0, d1)), (p1, (d0,)), (d1, (d0, d1))):
                    self.upgrade(server)
                    self.serve(load, *pairs)
                load.stop()
                print(f"{load.kinds()}", file=sys.stderr)
                self.assertEqual(load.failures(), [])
                self.assertGreater(load.kinds()["ok"], 20)
            self.assertEqual(cluster.await_quiet(), {})
            cluster.router.ports = ["--http-port", "0", "--grpc-port", "0"]
            cluster.router.bin = BIN
            cluster.router.signal(signal.SIGTERM)
            self.assertEqual(cluster.router.await_exit(30), 0)
            cluster.router.launch()
            cluster.router.await_start()
            cluster.url = cluster.router.ready["http_url"]
            cluster.await_ready()
            known.answers = of_this_release
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                outcomes = list(pool.map(lambda i: known.ask(cluster, i), range(len(requests))))
            self.assertEqual({one.kind for one in outcomes}, {"ok"})

    def test_a_router_of_this_release_refuses_workers_of_the_first_and_says_why(self):
        cluster = FirstCluster("first-workers", prefill=1, decode=1)
        cluster.router.bin = BIN
        cluster.await_ready = lambda: None
        cluster.get = lambda path, **_: {"data": [{"id": "tiny-kjv"}]}  # Before it is ready.
        with cluster:
            del cluster.get
            began = time.monotonic()
            status, answer = await_true(
                lambda: self.refusal(cluster), 30, "it says why it uses none of them")
            print(f"after {time.monotonic() - began:.1f} s: {answer}", file=sys.stderr)
            self.assertEqual(status, 503)
            code = cluster.request("POST", "/v1/completions", {"model": cluster.model,
                                                               "prompt": "a"})[0]
            self.assertEqual(code, 503)

    @staticmethod
    def refusal(cluster):
        reasons = [worker["reason"] for worker in cluster.get("/status")["workers"]]
        if not all("it speaks protocol 1" in reason for reason in reasons):
            return None
        return cluster.request("GET", "/ready", timeout=5)[0], reasons


if __name__ == "__main__":
    BIN, FIRST = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))
    unittest.main(verbosity=2)
