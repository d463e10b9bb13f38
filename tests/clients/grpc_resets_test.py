#!/usr/bin/env python3
"""Clients that open streams of gRPC and reset or leave them: what the router holds for them is
bounded, they are slowed, and others do not notice.

Usage (with the Python of the tools' environment): grpc_resets_test.py PATH_OF_BATON
"""
import concurrent.futures
import pathlib
import sys
import time
import unittest

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from grpc_test import LIMIT_S, Service  # noqa: E402
from process_cluster import ProcessCluster, await_true  # noqa: E402
from raw_http2 import ENHANCE_YOUR_CALM, RawClient  # noqa: E402
from slow_readers_test import rss_mb  # noqa: E402

BIN = None
# A router that counts nothing takes 28 KB for each stream: 560 MB for these.
NUM_STREAMS = 20_000
MAX_GROWTH_MB = 250
LEFT = 150  # Fewer than one may have open,
NUM_LEAVING = 40  # by so many: more in all than nobody waits for.
STREAMS = [{"text": f"{i} In the beginning God created", "options": {
    "max_tokens": 150, "temperature": 0.8, "seed": i, "ignore_eos": True}} for i in range(6)]


class GrpcResetsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(
            ProcessCluster(BIN, "grpc-resets", prefill=1, decode=1))
        cls.address = cls.cluster.router.ready["address"]
        cls.port = int(cls.address.rsplit(":", 1)[1])
        channel = cls.enterClassContext(grpc.insecure_channel(cls.address))
        cls.inference = Service(channel, "baton.v1.Inference")
        cls.expected = cls.stream_all(cls)

    def ask(self, request):
        return [i for e in self.inference.call("Generate", **request) if "delta" in e
                for i in e["delta"].get("token_ids", [])]

    def stream_all(self):
        with concurrent.futures.ThreadPoolExecutor(len(STREAMS)) as pool:
            return list(pool.map(lambda request: GrpcResetsTest.ask(self, request), STREAMS))

    def counter(self, name):
        return self.cluster.router.metric(f"baton_grpc_{name}")

    def beside_known_streams(self, attack):
        """Runs it while the known streams come, again and again; the router's growth in MB."""
        before = largest = rss_mb(self.cluster.router.pid)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            attacked = pool.submit(attack)
            while True:
                self.assertEqual(self.stream_all(), self.expected)
                largest = max(largest, rss_mb(self.cluster.router.pid))
                if attacked.done():
                    break
            attacked.result()
        await_true(lambda: self.counter("connections") <= 1, LIMIT_S, "they have gone")
        self.assertEqual(self.cluster.await_quiet(), {})
        return largest - before

    def flood(self, address, count):
        """So many are sent at once, and go through in time; then the library ends the connection,
        whose answers to pings do not come."""
        client = RawClient(self.port, address)
        client.open(count, reset=True)
        self.assertTrue(client.ended.wait(2 * LIMIT_S))
        client.close()

    def test_a_client_that_cancels_hundreds_at_once_and_some_for_ever_never_waits(self):
        """The first, as none was flooded yet."""
        with grpc.insecure_channel(self.address) as channel:
            inference = Service(channel, "baton.v1.Inference")
            calls = [inference.open("Generate", **STREAMS[0]) for _ in range(500)]
            for call in calls:
                call.cancel()
            end = time.monotonic() + 3
            while time.monotonic() < end:  # By deadlines, 50 a second at most.
                inference.open("Generate", timeout=0.02, **STREAMS[0]).code()
            tokens = [i for e in inference.call("Generate", **STREAMS[0]) if "delta" in e
                      for i in e["delta"].get("token_ids", [])]
            self.assertEqual(tokens, self.expected[0])
        self.assertEqual((self.counter("paced_total"), self.counter("calmed_total")), (0, 0))

    def test_streams_that_are_reset_at_once_hold_bounded_memory_and_others_go_on(self):
        paced, calmed = self.counter("paced_total"), self.counter("calmed_total")
        growth = self.beside_known_streams(lambda: self.flood("127.0.0.2", NUM_STREAMS))
        self.assertLess(growth, MAX_GROWTH_MB)
        self.assertGreater(self.counter("paced_total"), paced)
        self.assertEqual(self.counter("calmed_total"), calmed, "nobody is closed for resets")

    def test_a_neighbour_at_the_same_address_keeps_its_connection(self):
        self.beside_known_streams(lambda: self.flood("127.0.0.1", NUM_STREAMS // 2))

    def test_streams_of_a_client_that_acknowledges_no_settings_have_a_limit(self):
        told = []

        def open_them():
            for _ in range(4):
                client = RawClient(self.port, "127.0.0.3")
                client.open(NUM_STREAMS // 4, reset=False)
                told.append(client.goaway())
                client.close()
        growth = self.beside_known_streams(open_them)
        self.assertLess(growth, MAX_GROWTH_MB)
        self.assertEqual(told, [(ENHANCE_YOUR_CALM, "more than 200 streams open at once")] * 4)

    def test_streams_that_are_left_with_their_connection_count_as_reset(self):
        def leave_again_and_again():
            for _ in range(3):
                clients = [RawClient(self.port, "127.0.0.4") for _ in range(NUM_LEAVING)]
                for client in clients:
                    client.open(LEFT, reset=False)
                    client.ping()
                for client in clients:
                    await_true(lambda c=client: c.has_pong() or c.ended.is_set(), LIMIT_S,
                               "they are open, or it waited until the library ended it")
                for client in clients:
                    client.close()
        growth = self.beside_known_streams(leave_again_and_again)
        self.assertLess(growth, 2 * MAX_GROWTH_MB)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).parent
    sys.argv.pop(1)
    unittest.main(verbosity=2)
