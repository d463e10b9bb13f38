#!/usr/bin/env python3
"""{kill -9, SIGSTOP, SIGTERM} of each role at each of five moments, and of one rank of a worker what
only ranks have: a thread that goes no further. What the clients see.

Usage: fault_matrix_test.py FOLDER_OF_PROGRAMS [unittest arguments]. The programs must be of a build
with fail points. BATON_NIGHTLY=1 runs all 45 cells of the roles and all 12 of ranks, otherwise a fixed
15 and 6 in which each role meets each moment. A cell whose fault did not take effect fails.
"""
import itertools
import os
import random
import signal
import sys
import time
import unittest

from known_answers import KnownAnswers, Load, make_requests
from process_cluster import ProcessCluster, await_true, process_state

BIN = None
NIGHTLY = "BATON_NIGHTLY" in os.environ
ACTIONS = ("kill", "stop", "term")
MOMENTS = ("queued", "prefilling", "transferring", "decoding", "finishing")
STOPPED_S = 4  # Beyond T_hang.
STOPPED_BETWEEN_RANKS_S = 8  # And beyond three times what ranks wait for each other.
# 70: a worker that ends itself (common/process/lost_device.h).
EXIT_CODES = {"kill": -signal.SIGKILL, "term": 0, "hang": 70}
NOTICED_S = 2  # The router's death, by its clients, on a busy machine.
# Which pass of a moment: one of several, and so another layer or token in each cell.
PASSES = {"queued": 3, "prefilling": 12, "transferring": 24, "decoding": 60, "finishing": 3}
PASSES_ONCE_PER_REQUEST = {("prefill", "decoding"): 3, ("router", "transferring"): 4}
# Of a worker of two ranks: dozens of meetings a step, so that it has met often enough to be impatient.
RANK_PASSES = {"rank.exchange": (400, 800), "rank.layer": (200, 400)}
RANK_ACTIONS = ("hang", "stop", "kill")
# What a client may see when its router dies: the connection ends, and new ones are refused.
ROUTER_DIES = ("ok", "broken", "error")


def cells(role):
    for i, (moment, action) in enumerate(itertools.product(range(5), range(3))):
        offset = ("prefill", "decode", "router").index(role)
        if NIGHTLY or action == (moment + offset) % 3:
            yield MOMENTS[moment], ACTIONS[action]


def rank_cells(role):
    stops_at = {"prefill": "rank.layer", "decode": "rank.exchange"}[role]
    for moment, action in itertools.product(RANK_PASSES, RANK_ACTIONS):
        if NIGHTLY or action == "hang" or (moment, action) == (stops_at, "stop"):
            yield moment, action


class FaultMatrixTest(unittest.TestCase):
    def matrix(self, role):
        faults = []
        for moment, action in cells(role):
            draw = random.Random(f"{role} {moment} {action}")
            passes = PASSES_ONCE_PER_REQUEST.get((role, moment), PASSES[moment])
            faults.append(f"{role}.{moment}:{action}:{1 + draw.randrange(passes)}")
        self.see_faults(f"fault-matrix-{role}", role, faults)

    def matrix_of_ranks(self, role):
        faults = []
        for moment, action in rank_cells(role):
            draw = random.Random(f"{role} {moment} {action}")
            faults.append(f"{moment}:{action}:{draw.randrange(*RANK_PASSES[moment])}")
        self.see_faults(f"fault-matrix-ranks-{role}", role, faults, **{f"{role}_tp": 2})

    def see_faults(self, name, role, faults, **options):
        with ProcessCluster(BIN, name, worker={"num_blocks": 192}, **options) as cluster:
            known = KnownAnswers(cluster, make_requests(16, long_tokens=400, max_tokens=80))
            victim = cluster.router if role == "router" else getattr(cluster, role)[0]
            for fault in faults:
                with self.subTest(fault):
                    self.cell(cluster, known, victim, fault)
                if process_state(victim.pid) == "T":
                    victim.signal(signal.SIGCONT)

    def cell(self, cluster, known, victim, fault):
        begin = time.monotonic()
        name, action, _ = fault.split(":")
        cluster.restart(victim, fault)
        fired = len(cluster.fired())
        with Load(cluster, known, clients=4, seed=fault) as load:
            await_true(lambda: len(cluster.fired()) > fired, 60, f"{fault} took effect")
            self.assertEqual(cluster.fired()[fired], f"{name} {action} {victim.pid}")
            died_at = self.see_through(cluster, victim, action, name.startswith("rank."))
            load.stop()
        unheard = [o for o in load.outcomes
                   if o.kind == "broken" and o.began < died_at and o.ended > died_at + NOTICED_S]
        self.assertEqual(unheard, [], f"clients did not notice that the router died at {died_at}")
        allowed = ROUTER_DIES if victim.role == "router" else ("ok",)
        self.assertEqual(load.failures(allowed), [], load.kinds())
        # The cluster is whole again.
        after = [known.ask(cluster, i) for i in range(2)]
        self.assertEqual([o.kind for o in after], ["ok", "ok"], [o.detail for o in after])
        self.assertEqual(cluster.await_quiet(), {})
        code, text = cluster.audit()
        self.assertEqual(code, 0, text)
        # The same life as when it was fixed: none ended beside what was placed.
        self.assertEqual([s.name for s in cluster.workers if s.process.poll() is not None], [])
        print(f"{time.monotonic() - begin:5.1f} s  {fault}: {load.kinds()}", flush=True)

    def see_through(self, cluster, victim, action, of_ranks):
        """Sees from outside what the action did and makes the victim serve again; when it died."""
        died_at = float("inf")
        if action == "stop":
            await_true(lambda: process_state(victim.pid) == "T", 5, "the victim is stopped")
            time.sleep(STOPPED_BETWEEN_RANKS_S if of_ranks else STOPPED_S)
            victim.signal(signal.SIGCONT)
        else:
            code = victim.await_exit(60)
            died_at = time.monotonic()
            self.assertEqual(code, EXIT_CODES[action])
            if action == "hang":
                self.assertIn("has not come to the others", victim.last_log())
            cluster.restart(victim)
        if victim.role == "router":
            cluster.await_ready()
        else:
            cluster.await_healthy(victim)
        return died_at

    def test_faults_of_a_prefill_worker_change_no_answer(self):
        self.matrix("prefill")

    def test_faults_of_a_decode_worker_change_no_answer(self):
        self.matrix("decode")

    def test_faults_of_ranks_that_prefill_change_no_answer(self):
        self.matrix_of_ranks("prefill")

    def test_faults_of_ranks_that_decode_change_no_answer(self):
        self.matrix_of_ranks("decode")

    def test_faults_of_the_router_end_its_requests_clearly_and_leave_no_block(self):
        self.matrix("router")


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main(verbosity=2)
