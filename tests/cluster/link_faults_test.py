#!/usr/bin/env python3
"""Damaged links between real processes: every answer is the fault-free one, no block is lost.

Usage: link_faults_test.py FOLDER_OF_PROGRAMS [unittest arguments]. BATON_NIGHTLY=1 runs every cell;
otherwise a fixed part. Each cell proves by the proxy's counts that its fault took effect.
"""
import ctypes
import os
import pathlib
import random
import signal
import sys
import time
import unittest

from fault_proxy import Faults
from known_answers import KnownAnswers, Load, make_requests
from process_cluster import ProcessCluster, await_true

BIN = None
NIGHTLY = "BATON_NIGHTLY" in os.environ
HOLD_S = 3.5  # Longer than T_hang and the shortest deadline of a transfer.
HANG_S = 12   # T_hang is 2.5 s; a layer that took the 8 s of a stop would make it 20 s.


class StoppedThread:
    """While in here one thread of a process stands still, as in a kernel that hangs. By ptrace, whose
    calls must all come from one thread."""
    SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, pid, name):
        tasks = pathlib.Path(f"/proc/{pid}/task")
        self.thread = next(int(task.name) for task in tasks.iterdir()
                           if (task / "comm").read_text().strip() == name)

    def ptrace(self, request):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(request, self.thread, None, None) != 0:
            raise unittest.SkipTest(f"no ptrace here: {os.strerror(ctypes.get_errno())}")

    def __enter__(self):
        self.ptrace(self.SEIZE)
        self.ptrace(self.INTERRUPT)
        os.waitpid(self.thread, self.WALL)

    def __exit__(self, *_):
        self.ptrace(self.DETACH)


def byte_in(draw, low=20_000, high=400_000):
    return draw.randrange(low, high)


def transfer_faults(draw):
    """(what the proxy must have counted, faults) by name; of the link that K/V takes."""
    first = byte_in(draw)
    return {
        "delayed": ("delayed", dict(up=Faults(delay_s=0.05), down=Faults(delay_s=0.05))),
        "slow": ("limited", dict(up=Faults(rate=300_000))),
        "cut at a byte": ("cut", dict(up=Faults(cut_at=byte_in(draw)))),
        "silent from a byte on": ("swallowed", dict(up=Faults(swallow_at=byte_in(draw)))),
        "acknowledgements lost": ("swallowed", dict(down=Faults(swallow_at=draw.randrange(200)))),
        "flipped bits": ("flipped", dict(up=Faults(flip_at=tuple(byte_in(draw)
                                                                  for _ in range(8))))),
        "a span twice": ("duplicated", dict(up=Faults(duplicate=(first, draw.randrange(1, 4000))))),
        "blocked one way": ("held", dict(up=Faults(block=True))),
        "blocked the other way": ("held", dict(down=Faults(block=True))),
        "accepts and is silent": ("half_open", dict(half_open=True)),
    }


def flips(draw):
    return Faults(flip_at=tuple(byte_in(draw, 100, 20_000) for _ in range(12)))


def control_faults(draw):
    """The same for the link between router and worker."""
    return {
        "delayed": ("delayed", dict(up=Faults(delay_s=0.1), down=Faults(delay_s=0.1))),
        "slow": ("limited", dict(up=Faults(rate=4000), down=Faults(rate=4000))),
        "cut at a byte": ("cut", dict(down=Faults(cut_at=byte_in(draw, 100, 4000)))),
        "requests lost": ("swallowed", dict(up=Faults(swallow_at=byte_in(draw, 100, 4000)))),
        "answers lost": ("swallowed", dict(down=Faults(swallow_at=byte_in(draw, 100, 4000)))),
        "a span twice": ("duplicated", dict(down=Faults(duplicate=(byte_in(draw, 100, 4000), 60)))),
        "flipped bits": ("flipped", dict(up=flips(draw), down=flips(draw))),
        "blocked one way": ("held", dict(up=Faults(block=True))),
        "blocked the other way": ("held", dict(down=Faults(block=True))),
        "accepts and is silent": ("half_open", dict(half_open=True)),
    }


class LinkFaultsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = ProcessCluster(BIN, "link-faults", worker={"num_blocks": 192})
        cls.enterClassContext(cls.cluster)
        cls.known = KnownAnswers(cls.cluster, make_requests(32))

    def cell(self, name, proxy, faults, counted):
        """The fault under load, then healing; all answers are right and all blocks come back."""
        begin = time.monotonic()
        with self.subTest(name), Load(self.cluster, self.known, seed=name) as load:
            await_true(lambda: len(load.outcomes) >= 2, 30, "answers come")
            proxy.set(**faults)
            if faults.get("half_open"):
                proxy.cut()
            await_true(lambda: proxy.counts[counted], 30,
                       lambda: f"{name}: no effect; the proxy counted {dict(proxy.counts)}")
            time.sleep(HOLD_S)
            counts = dict(proxy.counts)
            proxy.set()
            load.stop()
            self.assertEqual(load.failures(), [], f"{name}: {load.kinds()}, {counts}")
            self.assertEqual(self.cluster.await_quiet(), {}, name)
            print(f"{time.monotonic() - begin:5.1f} s  {name}: {load.kinds()}, {counts}", flush=True)
        proxy.set()

    def cells(self, link, proxy, faults, offset):
        for i, (name, (counted, change)) in enumerate(faults.items()):
            if NIGHTLY or (i + offset) % 3 == 0:
                self.cell(f"{link} {name}", proxy, change, counted)

    def test_damaged_transfers_between_workers_change_no_answer(self):
        server = self.cluster.decode[0]
        self.cells("K/V link:", server.data, transfer_faults(random.Random(1)), offset=0)

    def test_an_idle_router_proves_its_workers_again(self):
        def calls():
            return sum(server.metric("baton_calls_total") for server in self.cluster.decode)
        before = calls()
        await_true(lambda: calls() > before, 40, "a probe")
        self.assertEqual(self.cluster.request("GET", "/ready")[0], 200)

    def test_damaged_payloads_are_counted_on_the_metrics_page_of_their_receiver(self):
        server = self.cluster.decode[0]
        counted = "baton_kv_transport_checksum_failures_total"
        before = server.metric(counted)
        with Load(self.cluster, self.known, seed=5) as load:
            server.data.set(up=Faults(flip_at=tuple(range(20_000, 2_000_000, 20_000))))
            await_true(lambda: server.metric(counted) > before, 60,
                       lambda: f"counted; the proxy flipped {dict(server.data.counts)}")
            server.data.set()
            load.stop()
            self.assertEqual(load.failures(), [])
        self.assertEqual(self.cluster.await_quiet(), {})

    def test_a_forged_first_token_fails_its_handoff_and_no_worker(self):
        """Beyond the vocabulary, with the right checksum: of a sender that is not ours."""
        server = self.cluster.decode[0]
        pid, counted = server.pid, "baton_handoffs_failed_total"
        before = server.metric(counted)
        with Load(self.cluster, self.known, seed=6) as load:
            server.data.set(up=Faults(first_token=1 << 30))
            server.data.cut()  # Frames are told apart from a connection's begin.
            await_true(lambda: server.data.counts["forged"] > 2, 60, "final frames are forged")
            await_true(lambda: server.metric(counted) > before, 60, "a handoff failed")
            server.data.set()
            server.data.cut()
            load.stop()
            self.assertEqual(load.failures(), [])
        self.assertEqual((server.pid, server.process.poll()), (pid, None))
        self.assertEqual(self.cluster.await_quiet(), {})

    def test_a_hang_is_found_in_time_also_after_a_long_stop(self):
        """A stop is no sign of how long a layer takes: its worker is not trusted the longer."""
        server = self.cluster.decode[0]

        def handoffs():
            return server.metric("baton_handoffs_total")
        with Load(self.cluster, self.known, seed=7) as load:
            await_true(lambda: len(load.outcomes) >= 2, 30, "answers come")
            server.signal(signal.SIGSTOP)
            time.sleep(8)
            server.signal(signal.SIGCONT)
            self.cluster.await_healthy(server)
            before = handoffs()
            await_true(lambda: handoffs() > before + 2, 60, "it serves again")
            with StoppedThread(server.pid, "compute"):
                await_true(lambda: not self.cluster.said_of(server)["healthy"], HANG_S,
                           "the hang is found")
            self.cluster.await_healthy(server)
            load.stop()
            self.assertEqual(load.failures(), [])
        self.assertEqual(self.cluster.await_quiet(), {})

    def test_damaged_control_link_of_a_decode_worker_changes_no_answer(self):
        server = self.cluster.decode[0]
        self.cells("decode control link:", server.control, control_faults(random.Random(2)), 1)

    def test_damaged_control_link_of_a_prefill_worker_changes_no_answer(self):
        server = self.cluster.prefill[0]
        self.cells("prefill control link:", server.control, control_faults(random.Random(3)), 2)

    def test_clients_that_leave_at_any_token_leave_no_block_behind(self):
        with Load(self.cluster, self.known, seed=4, leave=0.7) as load:
            await_true(lambda: load.kinds().get("left", 0) >= (300 if NIGHTLY else 30), 120,
                       "clients have left")
        self.assertEqual(load.failures(), [])
        self.assertEqual(self.cluster.await_quiet(), {})


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main(verbosity=2)
