#!/usr/bin/env python3
"""gRPC clients that ask for much and read nothing: what the router holds for them is bounded.

Usage (with the Python of the tools' environment): grpc_slow_readers_test.py PATH_OF_BATON
"""
import pathlib
import sys
import unittest

import grpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from grpc_test import LIMIT_S, Service  # noqa: E402
from process_cluster import ProcessCluster, await_true  # noqa: E402
from slow_readers_test import rss_mb  # noqa: E402

BIN = None
# Of answers that wait, beyond the first 32 KiB of each: some 4,500 tokens.
UNREAD_BYTES = 200_000
# A router that makes events before they are read takes some 40 MB for the tokens of LONG.
MAX_GROWTH_MB = 16
# So that the libraries between the router and a reader take little: a window of 1 KiB.
SMALL_WINDOW = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
READERS = 2
# 64,000 tokens, each with its digest.
LONG = {"n": 64, "max_tokens": 1000, "ignore_eos": True, "logits_digest": True}
# 128 x 8 x 21 log probabilities, for which a router with UNREAD_BYTES has room once.
SCORED = {"n": 128, "max_tokens": 8, "ignore_eos": True, "logprobs": 20}
PROMPT = {"ids": [100, 101]}


class GrpcSlowReadersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(
            ProcessCluster(BIN, "grpc-slow-readers", prefill=1, decode=1,
                           worker={"num_blocks": 4096}, router={"max_unread_bytes": UNREAD_BYTES}))
        channel = cls.enterClassContext(
            grpc.insecure_channel(cls.cluster.router.ready["address"], options=SMALL_WINDOW))
        cls.inference = Service(channel, "baton.v1.Inference")

    def open(self, options):
        """A call whose reader has seen the first event and reads nothing more."""
        call = self.inference.open("Generate", token_ids=PROMPT, options=options)
        self.assertTrue(next(call).HasField("delta"))
        return call

    def end_of(self, call):
        """How a call ended whose reader reads on: its code and what was said."""
        with self.assertRaises(grpc.RpcError) as error:
            for _ in call:
                pass
        return error.exception.code(), error.exception.details()

    def num_overloaded(self):
        return self.cluster.metric("baton_requests_total", outcome="overloaded")

    def assert_all_is_given_back(self):
        """Every block, and the room for an answer of 4,000 tokens to a reader that reads."""
        self.assertEqual(self.cluster.await_quiet(), {})
        events = list(self.inference.call("Generate", token_ids=PROMPT,
                                          options={**LONG, "n": 20, "max_tokens": 200}))
        self.assertEqual(events[-1]["usage"]["completion_tokens"], 4000)

    def test_tokens_that_nobody_reads_are_held_up_to_a_bound(self):
        quick = dict(token_ids=PROMPT, options={"max_tokens": 50, "temperature": 0})
        expected = [e["delta"].get("token_ids") for e in self.inference.call("Generate", **quick)
                    if "delta" in e]
        before = rss_mb(self.cluster.router.pid)
        ended = self.num_overloaded()
        calls = [self.open(LONG) for _ in range(READERS)]
        await_true(lambda: self.num_overloaded() > ended, LIMIT_S,
                   "an answer ends for which there is no more room")
        self.assertLess(rss_mb(self.cluster.router.pid) - before, MAX_GROWTH_MB)
        # Whoever reads is served beside them.
        again = [e["delta"].get("token_ids") for e in self.inference.call("Generate", **quick)
                 if "delta" in e]
        self.assertEqual(sum(again, []), sum(expected, []))
        for call in calls:
            call.cancel()
        self.assert_all_is_given_back()

    def test_log_probabilities_are_counted_until_they_are_read(self):
        held = self.open(SCORED)
        before = rss_mb(self.cluster.router.pid)
        for _ in range(5):
            call = self.inference.open("Generate", token_ids=PROMPT, options=SCORED)
            code, said = self.end_of(call)
            self.assertEqual(code, grpc.StatusCode.RESOURCE_EXHAUSTED)
            self.assertIn("log probabilities", said)
        self.assertLess(rss_mb(self.cluster.router.pid) - before, MAX_GROWTH_MB)
        held.cancel()
        self.assert_all_is_given_back()
        read = list(self.inference.call("Generate", token_ids=PROMPT, options=SCORED))
        outputs = [o for e in read for o in e.get("delta", {}).get("outputs", [])]
        self.assertEqual([len(o["top"]) for o in outputs], [20] * 128 * 8)

    def test_a_small_request_for_a_huge_answer_is_refused_by_name_and_value(self):
        call = self.inference.open("Generate", token_ids=PROMPT,
                                   options={**SCORED, "max_tokens": 373})
        code, said = self.end_of(call)
        self.assertEqual(code, grpc.StatusCode.INVALID_ARGUMENT)
        for part in ("logprobs is 20", "n 128", "at most 1000000"):
            self.assertIn(part, said)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).parent
    sys.argv.pop(1)
    unittest.main(verbosity=2)
