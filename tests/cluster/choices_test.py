#!/usr/bin/env python3
"""Choices of one prompt share its K/V on the decode worker: one transfer, the blocks of the prompt
once, and the bits of choices that were asked for alone.

Usage: choices_test.py PATH_OF_BATON [unittest arguments]
"""
import math
import sys
import threading
import unittest

from api_client import metric_sum
from bits_test import prompt
from running_cluster import RunningCluster

BATON = None
BLOCK, NUM_BLOCKS = 16, 1024
LENGTH, ANSWER, N = 1500, 200, 8


class ChoicesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = RunningCluster(BATON, "choices", prefill=1, decode=1, block_size=BLOCK,
                                     num_blocks=NUM_BLOCKS, compute_dtype="f32")
        cls.enterClassContext(cls.cluster)
        cls.metrics = cls.cluster.workers("decode")[0]["metrics_url"]

    def counted(self, name):
        return metric_sum(self.metrics, f"baton_{name}_total")

    def ask(self, n, **more):
        request = dict(max_tokens=24, ignore_eos=True, temperature=0.9, seed=5) | more
        answer = self.cluster.post("/v1/completions", n=n, return_token_ids=True,
                                   return_logits_digest=True, **request)
        return [(c["token_ids"], c["logits_digests"]) for c in answer["choices"]]

    def test_eight_choices_cost_one_transfer(self):
        costs = []
        for salt, n in ((1, 1), (2, N)):
            before = [self.counted(c) for c in ("handoffs", "kv_transfer_bytes", "joined_choices")]
            # The first is to be there still when a router without a core of its own sends the others.
            self.ask(n, prompt=prompt(LENGTH, salt), max_tokens=200)
            after = [self.counted(c) for c in ("handoffs", "kv_transfer_bytes", "joined_choices")]
            costs.append([b - a for a, b in zip(before, after)])
        print(f"prompt of {LENGTH} tokens: n = 1 {costs[0][1]:.0f} bytes, "
              f"n = {N} {costs[1][1]:.0f} bytes", file=sys.stderr)
        self.assertEqual(costs[0][0], 1)
        self.assertEqual(costs[1], [1, costs[0][1], N - 1])

    def test_the_prompt_takes_its_blocks_once(self):
        most, over = 0, threading.Event()
        asking = threading.Thread(target=lambda: (
            self.ask(N, prompt=prompt(LENGTH, 3), max_tokens=ANSWER), over.set()))
        asking.start()
        while not over.wait(0.01):
            states = self.cluster.workers("decode")[0]["blocks"]
            most = max(most, NUM_BLOCKS - states["free"] - states["cached"])
        asking.join()
        shared = LENGTH // BLOCK
        own = math.ceil((LENGTH % BLOCK + ANSWER) / BLOCK)
        print(f"blocks of {N} choices: {most} at most; {N * (shared + own)} if each had its own",
              file=sys.stderr)
        self.assertGreater(most, 0)
        self.assertLessEqual(most, shared + N * own)

    def test_greedy_choices_have_the_bits_of_one_alone(self):
        for length in (5, 16, 17, 300):
            alone = self.ask(1, prompt=prompt(length, 4), temperature=0)
            self.assertEqual(self.ask(4, prompt=prompt(length, 4), temperature=0), alone * 4)

    def test_the_first_tokens_are_those_that_the_prefill_worker_samples(self):
        for length in (5, 16, 17, 300):
            for more in ({}, {"repetition_penalty": 1.2, "top_p": 0.9}):
                # Of one token each, every choice goes for itself, through the prefill worker.
                apart = self.ask(N, prompt=prompt(length, 5), max_tokens=1, **more)
                joined = self.ask(N, prompt=prompt(length, 5), max_tokens=9, **more)
                self.assertEqual([(t[:1], d[:1]) for t, d in joined], apart)
                self.assertGreater(len({tuple(t) for t, _ in joined}), 1, "all choices are equal")

    def test_nothing_stays_held(self):
        self.ask(N, prompt=prompt(100, 6))
        self.assertEqual(self.cluster.await_quiet(NUM_BLOCKS), [])


if __name__ == "__main__":
    BATON = sys.argv.pop(1)
    unittest.main()
