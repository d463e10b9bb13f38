#!/usr/bin/env python3
"""Every queue is filled to its cap: what is beyond is refused clearly, and then all is well again.

Usage: queue_caps_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import collections
import sys
import threading
import unittest

from api_client import HttpError
from known_answers import KnownAnswers, make_requests
from process_cluster import ProcessCluster

BIN = None
FLOOD = 48


class QueueCapsTest(unittest.TestCase):
    def flood(self, cluster, known):
        """Many clients at once: {200 or the refusal's code: clients}, and the refusals."""
        codes, refusals = collections.Counter(), []
        start = threading.Barrier(FLOOD)

        def ask(i):
            start.wait(60)
            try:
                answer = cluster.post("/v1/completions", return_token_ids=True,
                                      **known.requests[i % len(known.requests)])
                tokens = answer["choices"][0]["token_ids"]
                right = tokens == known.answers[i % len(known.requests)][0]
                codes[200 if right else "wrong"] += 1
            except HttpError as error:
                codes[error.code] += 1
                refusals.append(error)
        threads = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(FLOOD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        self.assertFalse([t for t in threads if t.is_alive()], "a request hangs")
        return codes, refusals

    def assert_well(self, cluster, known):
        self.assertEqual(cluster.await_quiet(), {})
        for i in range(4):
            outcome = known.ask(cluster, i)
            self.assertEqual(outcome.kind, "ok", outcome.detail)

    def test_full_router_queue_refuses_with_503_and_serves_again(self):
        # One sequence at a time on one pair, and room for four requests that wait.
        with ProcessCluster(BIN, "queue-caps-router", prefill=1, decode=1,
                            worker={"num_blocks": 130, "max_batch_sequences": 1},
                            router={"max_queued_requests": 4}) as cluster:
            known = KnownAnswers(cluster, make_requests(4, long_tokens=60), clients=1)
            codes, refusals = self.flood(cluster, known)
            self.assertEqual(set(codes), {200, 503}, codes)
            self.assertGreaterEqual(codes[200], 4, codes)
            for refusal in refusals:
                self.assertIn("Retry-After", refusal.headers)
                self.assertIn("try again", refusal.body)
            self.assert_well(cluster, known)

    def test_refusals_of_full_workers_are_absorbed_by_the_router(self):
        # Two waiting prompts and two unread calls per worker: most calls are refused at first.
        with ProcessCluster(BIN, "queue-caps-workers", prefill=1, decode=2,
                            worker={"max_queued_requests": 2, "num_blocks": 130}) as cluster:
            known = KnownAnswers(cluster, make_requests(8), clients=1)
            codes, _ = self.flood(cluster, known)
            self.assertEqual(codes, {200: FLOOD})
            refused = sum(server.metric("baton_calls_refused_total") for server in cluster.workers)
            self.assertGreater(refused + cluster.metric("baton_sequences_requeued_total"), 0,
                               "nothing was refused: the claim was not tried")
            self.assert_well(cluster, known)

    def test_body_beyond_the_byte_cap_of_the_queue_is_refused_alone(self):
        with ProcessCluster(BIN, "queue-caps-bytes", prefill=1, decode=1,
                            router={"max_queued_bytes": 2000}) as cluster:
            known = KnownAnswers(cluster, make_requests(4, long_tokens=60), clients=1)
            with self.assertRaises(HttpError) as refused:
                cluster.post("/v1/completions", prompt="word " * 800, max_tokens=4)
            self.assertEqual(refused.exception.code, 503)
            self.assert_well(cluster, known)


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main(verbosity=2)
