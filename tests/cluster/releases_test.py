#!/usr/bin/env python3
"""Two releases of one cluster: workers and routers of the next one, which speak a later protocol and
carry K/V in other frames, beside those of this one, under clients that know every answer.

Usage: releases_test.py FOLDER_OF_PROGRAMS [unittest arguments]; those of the next release are in its
folder `next`.
"""
import pathlib
import signal
import sys
import time
import unittest

from known_answers import KnownAnswers, Load, make_requests
from process_cluster import ProcessCluster, await_true

BIN = None
MAX_TRIES = 5


class ReleasesTest(unittest.TestCase):
    def upgrade(self, server):
        server.bin = BIN / "next"
        self.cluster.restart(server)

    def spoken(self):
        """{worker: (protocol, K/V frames)} as the router says."""
        said = ((server.name, self.cluster.said_of(server)) for server in self.cluster.workers)
        return {name: (worker["protocol"], worker["kv_wire"]) for name, worker in said}

    def serve(self, load, *decode):
        """Until each of these has taken over further prompts, and more answers have come."""
        before = {server: server.metric("baton_handoffs_total") for server in decode}
        number = len(load.outcomes)
        await_true(lambda: len(load.outcomes) > number + 8 and
                   all(s.metric("baton_handoffs_total") > n + 2 for s, n in before.items()),
                   60, lambda: f"answers and handoffs; {load.kinds()}")

    def kill_amid_answers(self, server):
        moves = self.cluster.metric("baton_moves_total")
        for _ in range(MAX_TRIES):
            await_true(lambda: self.cluster.said_of(server)["running"], 30, "it decodes")
            server.signal(signal.SIGKILL)
            server.await_exit()
            await_true(lambda: not self.cluster.said_of(server)["healthy"], 30, "it is missed")
            deadline = time.monotonic() + 2  # A loss is judged a moment later.
            while time.monotonic() < deadline:
                if self.cluster.metric("baton_moves_total") > moves:
                    return
                time.sleep(0.05)
            self.cluster.restart(server)
        self.fail(f"in {MAX_TRIES} tries the killed worker had no answer to lose")

    def check(self, load):
        load.stop()
        self.assertEqual(load.failures(), [])
        self.assertGreater(load.kinds()["ok"], 20)
        self.assertEqual(self.cluster.await_quiet(), {})
        self.assertEqual(self.cluster.audit()[0], 0, self.cluster.audit()[1])

    def test_an_upgrade_across_protocols_costs_no_request_and_no_token(self):
        with ProcessCluster(BIN, "releases") as self.cluster:
            cluster = self.cluster
            (p0, p1), (d0, d1) = cluster.prefill, cluster.decode
            known = KnownAnswers(cluster, make_requests(32))
            ((protocol, wire),) = set(self.spoken().values())

            # This release's router: the next release's workers speak its protocol.
            with Load(cluster, known, seed=1) as load:
                self.upgrade(d0)
                self.serve(load, d1)  # Nobody pairs with the other one yet.
                self.upgrade(p0)
                self.serve(load, d0, d1)
                self.assertEqual(self.spoken(), {
                    "prefill-0": (protocol, wire + 1), "decode-0": (protocol, wire + 1),
                    "prefill-1": (protocol, wire), "decode-1": (protocol, wire)})
                self.check(load)
            # Frames that are not understood are handoffs that fail, which no answer shows.
            failed = cluster.metric("baton_handoff_failures_total")
            self.assertLess(failed, 3)  # One or two: a machine that stood still.

            # The next release's router: this release's workers are known to it.
            self.upgrade(cluster.router)
            self.assertEqual(self.spoken(), {
                "prefill-0": (protocol + 1, wire + 1), "decode-0": (protocol + 1, wire + 1),
                "prefill-1": (protocol, wire), "decode-1": (protocol, wire)})
            with Load(cluster, known, seed=2) as load:
                self.serve(load, d0, d1)
                # What the only pair of this release has begun, the other one goes on with.
                self.kill_amid_answers(d1)
                self.serve(load, d0)
                self.upgrade(p1)
                self.upgrade(d1)
                self.serve(load, d0, d1)
                self.check(load)
            self.assertEqual(set(self.spoken().values()), {(protocol + 1, wire + 1)})


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
