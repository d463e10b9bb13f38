#!/usr/bin/env python3
"""Clients that open streams of gRPC and reset or leave them: what the router holds for them is
bounded, they are told, and others do not notice.

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
MAX_GROWTH_MB = 150
PER_CONNECTION = 5_000  # More than one may reset at once, and than time gives back meanwhile.
LEFT = 900  # Fewer than one may have open.
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

    def setUp(self):
        """Those of the test before are over: a new connection is let in."""
        def is_let_in():
            client = RawClient(self.port)
            await_true(lambda: client.frames, LIMIT_S, "it is told")
            client.close()
            return client.frames[0][2] != b""
        await_true(is_let_in, LIMIT_S, "new connections are let in", pause=0.1)

    def ask(self, request):
        return [i for e in self.inference.call("Generate", **request) if "delta" in e
                for i in e["delta"].get("token_ids", [])]

    def stream_all(self):
        with concurrent.futures.ThreadPoolExecutor(len(STREAMS)) as pool:
            return list(pool.map(lambda request: GrpcResetsTest.ask(self, request), STREAMS))

    def num_calmed(self):
        return self.cluster.router.metric("baton_grpc_calmed_total")

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
        self.assertEqual(self.cluster.await_quiet(), {})
        return largest - before

    def flood(self, address, reset):
        """So many streams, over connections that end by it; what each was told last."""
        told = []
        for _ in range(NUM_STREAMS // PER_CONNECTION):
            client = RawClient(self.port, address)
            client.open(PER_CONNECTION, reset)
            told.append(client.goaway())
            client.close()
        return told

    def assert_all_told(self, told):
        for error, text in told:
            self.assertEqual(error, ENHANCE_YOUR_CALM)
            self.assertRegex(text, "too many resets: of .* at most [0-9]+ streams at once")

    def test_streams_that_are_reset_at_once_hold_bounded_memory_and_others_go_on(self):
        calmed, told = self.num_calmed(), []
        growth = self.beside_known_streams(
            lambda: told.extend(self.flood("127.0.0.2", reset=True)))
        self.assertLess(growth, MAX_GROWTH_MB)
        self.assert_all_told(told)
        self.assertGreaterEqual(self.num_calmed() - calmed, len(told))

    def test_a_neighbour_at_the_same_address_keeps_its_connection(self):
        told = []
        self.beside_known_streams(lambda: told.extend(self.flood("127.0.0.1", reset=True)))
        self.assert_all_told(told)

    def test_streams_of_a_client_that_acknowledges_no_settings_have_a_limit(self):
        told = []
        growth = self.beside_known_streams(
            lambda: told.extend(self.flood("127.0.0.3", reset=False)))
        self.assertLess(growth, MAX_GROWTH_MB)
        self.assert_all_told(told)

    def test_streams_that_are_left_with_their_connection_count_as_reset(self):
        refused = []

        def leave_again_and_again():
            for _ in range(NUM_STREAMS // LEFT):
                client = RawClient(self.port, "127.0.0.4")
                client.open(LEFT, reset=False)
                await_true(lambda: client.frames, LIMIT_S, "it is let in, or refused")
                if client.frames[0][2] == b"":  # The library's settings say something.
                    refused.append(client.goaway())
                client.close()
        growth = self.beside_known_streams(leave_again_and_again)
        self.assertLess(growth, MAX_GROWTH_MB)
        self.assertGreaterEqual(len(refused), 1)
        self.assert_all_told(refused)

    def test_who_cancels_hundreds_at_once_and_some_for_ever_is_left_alone(self):
        calmed = self.num_calmed()
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
        self.assertEqual(self.num_calmed(), calmed)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).parent
    sys.argv.pop(1)
    unittest.main(verbosity=2)
