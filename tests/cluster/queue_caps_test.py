#!/usr/bin/env python3
"""Every queue is filled to its cap: what is beyond is refused clearly, and then all is well again.

Usage: queue_caps_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import collections
import json
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
            # The one place is taken while the clients come; on a busy machine they may come too late.
            for _ in range(10):
                holder = cluster.open_stream("/v1/completions", prompt=[5] * 10, max_tokens=1500,
                                             ignore_eos=True)
                next(holder)
                codes, refusals = self.flood(cluster, known)
                self.assertGreater(sum(1 for _ in holder), 0)
                if refusals:
                    break
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

    def assert_never(self, cluster, code, param, *words, path="/v1/completions", **body):
        """The request is refused for good: nothing says that trying again would help."""
        with self.assertRaises(HttpError) as refused:
            cluster.post(path, **body)
        error = refused.exception
        self.assertEqual(error.code, code, error.body)
        self.assertNotIn("Retry-After", error.headers)
        told = json.loads(error.body)["error"]
        self.assertEqual(told["type"], "invalid_request_error")
        self.assertEqual(told["param"], param)
        for word in words:
            self.assertIn(word, told["message"])
        with self.assertRaises(HttpError) as refused:
            list(cluster.open_stream(path, **body))
        self.assertEqual(refused.exception.code, code)

    def test_what_an_empty_queue_would_not_hold_is_refused_for_good(self):
        with ProcessCluster(BIN, "queue-caps-never", prefill=1, decode=1,
                            router={"max_queued_bytes": 4000, "max_queued_tokens": 100}) as cluster:
            known = KnownAnswers(cluster, make_requests(4, long_tokens=60), clients=1)
            self.assert_never(cluster, 413, None, "bytes; at most 4000",
                              prompt="a few words", user="x" * 5000, max_tokens=4)
            self.assert_never(cluster, 400, "prompt", "101 tokens", "at most 100",
                              prompt=[5] * 101, max_tokens=4)
            self.assert_never(cluster, 400, "prompt", "102 tokens", "at most 100",
                              prompt=[[5] * 51] * 2, max_tokens=4)
            self.assert_never(cluster, 400, "messages", "at most 100", max_tokens=4,
                              path="/v1/chat/completions",
                              messages=[{"role": "user", "content": "a b c d " * 100}])
            self.assertEqual(len(cluster.post("/v1/completions", prompt=[[5] * 50] * 2,
                                              max_tokens=1)["choices"]), 2)
            self.assert_well(cluster, known)

    def test_what_no_pool_would_hold_is_refused_for_good(self):
        with ProcessCluster(BIN, "queue-caps-pool", prefill=1, decode=1,
                            worker={"num_blocks": 10, "block_size": 16}) as cluster:
            self.assert_never(cluster, 400, "prompt", "161 tokens", "160",
                              prompt=[5] * 100, max_tokens=61)
            answer = cluster.post("/v1/completions", prompt=[5] * 100, max_tokens=60,
                                  ignore_eos=True)
            self.assertEqual(answer["usage"]["completion_tokens"], 60)

    def test_one_limit_for_choices_and_prompts(self):
        with ProcessCluster(BIN, "queue-caps-choices", prefill=1, decode=1) as cluster:
            answer = cluster.post("/v1/completions", prompt=[[5]] * 64, n=2, max_tokens=1)
            self.assertEqual(len(answer["choices"]), 128)
            self.assert_never(cluster, 400, "n", "128", prompt=[5], n=129, max_tokens=1)
            self.assert_never(cluster, 400, "n", "128", prompt=[[5]] * 43, n=3, max_tokens=1)
            self.assert_never(cluster, 400, "prompt", "128", prompt=[[5]] * 129, max_tokens=1)


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main(verbosity=2)
