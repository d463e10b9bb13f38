#!/usr/bin/env python3
"""K/V over the emulated NCCL between processes with emulated GPUs, of which one is killed or stopped
at a moment of its communicator's life, or has an NCCL that fails: what the clients see.

Usage: nccl_faults_test.py FOLDER_OF_PROGRAMS [unittest arguments]. BATON_NIGHTLY=1 runs all cells,
otherwise a fixed few. A cell whose fault did not take effect fails.
"""
import itertools
import os
import pathlib
import signal
import sys
import threading
import time
import unittest

from process_cluster import ProcessCluster, await_true, process_state
from running_cluster import at_once

BIN = None
NIGHTLY = "BATON_NIGHTLY" in os.environ
NUM_BLOCKS = 64
TOKENS = 6
STRIKE_LIMIT_S = 120
# All workers are healthy: what was under way has ended by then.
QUIET_LIMIT_S = 12
# From a kill until no router uses the worker. T_hang is 2.5 s; machines are busy.
FOUND_LIMIT_S = 8
# Moments of kernels/emulation/nccl/nccl_options.h, which the process passes on that side.
MOMENTS = {"prefill": ("connect", "init", "ready", "send", "sending"),
           "decode": ("id", "connect", "init", "ready", "receive", "landed", "taken")}
SIGNALS = [(role, f"{action}={moment}:{2 if moment in ('send', 'receive', 'landed') else 1}")
           for role in MOMENTS for moment, action in
           itertools.product(MOMENTS[role], ("kill", "stop"))]
# And what only the communicator suffers from.
FAILURES = [(role, f"{fault}=2") for role in MOMENTS
            for fault in ("fail", "cut", "abort=hang fail", "silent=1 cut")]
# Messages that come late by half a second each: slow, and no fault.
SLOW = [(role, f"delay_us=500000 {fault}")
        for role in MOMENTS for fault in ("cut=2", "kill=ready:1")]
FAILURES += [("prefill", "lose=2"), ("decode", "spoil=2"), ("prefill", "init=hang"),
             ("decode", "init=fail"), ("decode", "version=22105")]
USUAL = [("prefill", "kill=send:2"), ("decode", "stop=receive:2"), ("decode", "kill=landed:2"),
         ("prefill", "lose=2"), ("decode", "spoil=2")]


def prompt(salt):
    return [0] + [300 + (i * i * 7 + i * 31 + salt * 101) % 3700 for i in range(1, 19 + salt)]


class Found(threading.Event):
    """Set when the router does not use a worker any more that has ended; `took` seconds."""

    def __init__(self, cluster, server):
        super().__init__()
        self.took = None
        threading.Thread(target=self.watch, args=(cluster, server), daemon=True).start()

    def watch(self, cluster, server):
        process = server.process
        process.wait(STRIKE_LIMIT_S)
        died = time.monotonic()
        while self.took is None and time.monotonic() < died + 60:
            if server.name in cluster.unhealthy():
                self.took = time.monotonic() - died
                print(f"{server.name}: found in {self.took:.2f} s", file=sys.stderr)
                self.set()
            time.sleep(0.02)


class NcclFaultsTest(unittest.TestCase):
    def cluster(self, name, tp):
        library = BIN.parent / "kernels/emulation/nccl/libnccl_emulated.so"
        for variable, value in (("BATON_NCCL_LIBRARY", str(library)),
                                ("BATON_EMULATED_GPU", f"detector=off arch=sm100 devices={tp}")):
            os.environ[variable] = value
            self.addCleanup(os.environ.pop, variable, None)
        return ProcessCluster(BIN, name, worker={
            "device": "cuda", "num_blocks": NUM_BLOCKS, "max_model_len": 256, "threads": 1,
            "gpu_graphs": "off", "kv_transport": "nccl"}, prefill_tp=tp, decode_tp=tp)

    @staticmethod
    def ask(cluster, salt):
        choice = cluster.post("/v1/completions", model=cluster.model, prompt=prompt(salt),
                              max_tokens=TOKENS, temperature=0, ignore_eos=True,
                              return_token_ids=True, return_logits_digest=True)["choices"][0]
        return choice["token_ids"], choice["logits_digests"]

    def answers(self, cluster):
        answers = at_once([lambda s=s: self.ask(cluster, s) for s in range(4)])
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def has_struck(self, server, fault):
        if "kill" in fault:
            return server.process.poll() is not None
        if fault.startswith("stop"):
            return process_state(server.pid) == "T"
        if fault.startswith("spoil"):
            return server.metric("baton_kv_transport_checksum_failures_total", transport="nccl")
        if fault.startswith("version"):
            return "NCCL is 2.21.5 here" in server.last_log()
        return server.metric("baton_nccl_pairs_failed_total")

    @staticmethod
    def start(cluster, server):
        """Another life on the same ports, of which a connection of anybody's may hold one for a
        moment."""
        deadline = time.monotonic() + 60
        while True:
            server.launch()
            try:
                server.await_start()
                break
            except AssertionError:
                if ("Address already in use" not in server.last_log() or
                        time.monotonic() > deadline):
                    raise
                time.sleep(0.5)
        cluster.await_healthy(server, 60)

    def strike(self, cluster, server, fault, expected):
        server.process.kill()
        server.await_exit()
        os.environ["BATON_EMULATED_NCCL"] = fault
        try:
            self.start(cluster, server)
        finally:
            del os.environ["BATON_EMULATED_NCCL"]
        found = Found(cluster, server) if "kill" in fault else None
        deadline = time.monotonic() + STRIKE_LIMIT_S
        while not self.has_struck(server, fault):
            self.assertLess(time.monotonic(), deadline, f"{fault} of {server.name} did not strike")
            self.assertEqual(self.answers(cluster), expected)
        self.assertEqual(self.answers(cluster), expected)
        if fault.startswith("stop"):
            server.signal(signal.SIGCONT)
            cluster.await_healthy(server, 60)
        elif "kill" in fault:
            self.assertTrue(found.wait(FOUND_LIMIT_S + 1))
            self.assertLess(found.took, FOUND_LIMIT_S)
            self.start(cluster, server)
        self.assertEqual(self.answers(cluster), expected)
        self.assertEqual(cluster.await_quiet(QUIET_LIMIT_S), {})
        await_true(lambda: not any(s.metric("baton_nccl_held_slots") for s in cluster.workers),
                   QUIET_LIMIT_S, "no batch holds a slot")

    def await_path(self, cluster, transport, tp):
        """What the router says of a pair that has handed over."""
        def is_said():
            self.answers(cluster)  # Links are made by handoffs, over NCCL beside them.
            pairs = cluster.get("/status")["kv_pairs"]
            return (transport, "2.23.4", "2.23.4", tp) in [
                (p["transport"], p["nccl"], p["decode_nccl"], p["links_over_nccl"]) for p in pairs]
        await_true(is_said, 60, f"the router says that K/V goes by {transport}")

    def see(self, cells, name, tp=1):
        with self.cluster(name, tp) as cluster:
            expected = self.answers(cluster)
            self.await_path(cluster, "nccl", tp)
            for role, fault in cells:
                with self.subTest(f"{role}: {fault}"):
                    server = getattr(cluster, role)[0]
                    self.strike(cluster, server, fault, expected)
            carried = [s.metric("baton_kv_transport_bytes_accepted_total", transport="nccl")
                       for s in cluster.decode]
            self.assertGreater(sum(carried), 0)

    def test_a_fault_at_a_step_of_nccl_changes_no_answer_and_holds_nothing(self):
        self.see(USUAL, "nccl-faults")

    @unittest.skipUnless(NIGHTLY, "minutes each: BATON_NIGHTLY is not set")
    def test_every_signal_at_every_moment(self):
        self.see(SIGNALS, "nccl-signals")

    @unittest.skipUnless(NIGHTLY, "minutes each: BATON_NIGHTLY is not set")
    def test_a_fault_while_messages_are_slow(self):
        self.see(SLOW, "nccl-slow")

    @unittest.skipUnless(NIGHTLY, "minutes each: BATON_NIGHTLY is not set")
    def test_every_failure_of_a_communicator(self):
        self.see(FAILURES, "nccl-failures")

    @unittest.skipUnless(NIGHTLY, "minutes each: BATON_NIGHTLY is not set")
    def test_every_kill_that_nccl_does_not_tell_of(self):
        os.environ["BATON_EMULATED_NCCL"] = "silent=1"  # Of all but who is struck.
        self.addCleanup(os.environ.pop, "BATON_EMULATED_NCCL", None)
        self.see([("prefill", "kill=send:2"), ("prefill", "kill=sending:1"),
                  ("decode", "kill=receive:2"), ("decode", "kill=landed:2")], "nccl-silent")

    @unittest.skipUnless(NIGHTLY, "minutes each: BATON_NIGHTLY is not set")
    def test_every_usual_fault_and_failure_of_two_ranks(self):
        self.see(USUAL + FAILURES, "nccl-ranks", tp=2)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
