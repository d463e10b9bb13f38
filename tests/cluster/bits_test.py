#!/usr/bin/env python3
"""The logits are bit-identical whatever the cluster's shape (ARCHITECTURE.md, section 9), by
return_logits_digest. BATON_NIGHTLY=1 tries the whole cross product.

Usage: bits_test.py PATH_OF_BATON [unittest arguments]
"""
import itertools
import os
import sys
import unittest

from api_client import metric_sum
from running_cluster import RunningCluster, at_once

BATON = None
NIGHTLY = "BATON_NIGHTLY" in os.environ
NUM_BLOCKS_TOKENS = 16384  # Pool size of every shape, in tokens.
LENGTHS = (1, 15, 16, 17, 100, 513, 900)  # Around block, chunk and partial-attention boundaries.


def prompt(length, salt=0):
    """Token ids of plain text pieces, different for each salt."""
    return [0] + [300 + (i * i * 7 + i * 31 + salt * 101) % 3700 for i in range(1, length)]


REQUESTS = [dict(prompt=prompt(n), max_tokens=24, temperature=0, ignore_eos=True)
            for n in LENGTHS]
REQUESTS += [dict(prompt=prompt(n, salt=5), max_tokens=24, temperature=0.9, top_p=0.95, seed=n,
                  repetition_penalty=1.1, ignore_eos=True) for n in (40, 300)]


def shape(prefill=1, decode=1, chunk=512, block=16, threads=1, **more):
    return dict(prefill=prefill, decode=decode, chunk_tokens=chunk, block_size=block,
                num_blocks=NUM_BLOCKS_TOKENS // block, threads=threads, compute_dtype="f32", **more)


SHAPES = [shape(2, 2, chunk=128, block=8), shape(1, 2, chunk=16, block=32),
          shape(2, 1, chunk=2048, block=64, threads=2)]
if NIGHTLY:
    SHAPES = [shape(p, d, c, b, t) for (p, d), c, b, t in itertools.product(
        ((1, 1), (1, 2), (2, 1), (2, 2), (3, 3)), (16, 128, 2048), (8, 16, 32, 64), (1, 2))]


def ask(cluster, request):
    answer = cluster.post("/v1/completions", return_logits_digest=True, return_token_ids=True,
                          **request)
    choice = answer["choices"][0]
    assert len(choice["logits_digests"]) == len(choice["token_ids"]) == request["max_tokens"]
    return choice["token_ids"], choice["logits_digests"], answer["usage"]


def bits(cluster, together, requests=REQUESTS):
    calls = [lambda r=r: ask(cluster, r)[:2] for r in requests]
    answers = at_once(calls) if together else [call() for call in calls]
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


class BitsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with RunningCluster(BATON, "bits-reference", **shape()) as cluster:
            cls.reference = bits(cluster, together=False)
            cls.again = bits(cluster, together=False)  # Now with every prefix cached.
            cls.cached = ask(cluster, REQUESTS[-3])[2]["prompt_tokens_details"]["cached_tokens"]
            cls.batched = bits(cluster, together=True)
            cls.leaks = cluster.await_quiet(shape()["num_blocks"])

    def test_different_requests_have_different_digests(self):
        digests = [d for _, row in self.reference for d in row]
        self.assertGreater(len(set(digests)), len(digests) * 0.9)

    def test_prefix_hit_changes_no_bit(self):
        self.assertGreater(self.cached, 0, "nothing was cached: the claim was not tried")
        self.assertEqual(self.again, self.reference)

    def test_batch_mix_changes_no_bit(self):
        self.assertEqual(self.batched, self.reference)

    def test_no_block_is_lost_by_any_of_them(self):
        self.assertEqual(self.leaks, [])

    def test_cluster_shape_changes_no_bit(self):
        for options in SHAPES:
            with self.subTest(**options), RunningCluster(BATON, "bits-shape", **options) as cluster:
                self.assertEqual(bits(cluster, together=True), self.reference)
                self.assertEqual(cluster.await_quiet(options["num_blocks"]), [])

    def test_kv_in_8_bits_goes_through_a_handoff_and_another_shape_bit_by_bit(self):
        for dtype in ("fp8_e4m3", "fp8_e5m2"):
            few = REQUESTS[:6]
            with self.subTest(dtype), RunningCluster(BATON, "bits-fp8", **shape(kv_dtype=dtype)) as c:
                expected = [ask(c, r)[:2] for r in few]
            other = shape(prefill=2, decode=2, chunk=16, block=8, kv_dtype=dtype)
            with self.subTest(dtype), RunningCluster(BATON, "bits-fp8", **other) as c:
                self.assertEqual(at_once([lambda r=r: ask(c, r)[:2] for r in few]), expected)

    def test_preemption_changes_no_bit(self):
        long_requests = [dict(r, max_tokens=200) for r in REQUESTS[:5]] * 2
        with RunningCluster(BATON, "bits-roomy", **shape()) as cluster:
            expected = [ask(cluster, r)[:2] for r in long_requests[:5]]
        # 40 blocks hold two or three of the ten sequences at their full length.
        for preemption in ("recompute", "swap"):
            tight = {**shape(), "num_blocks": 40, "preemption": preemption}
            with self.subTest(preemption), RunningCluster(BATON, "bits-tight", **tight) as cluster:
                got = at_once([lambda r=r: ask(cluster, r)[:2] for r in long_requests])
                urls = [worker["metrics_url"] for worker in cluster.workers()]
                preempted = sum(metric_sum(u, "baton_preemptions_total") for u in urls)
                swapped = sum(metric_sum(u, "baton_swapped_sequences_total") for u in urls)
                self.assertEqual(got, expected * 2)
                self.assertGreater(preempted, 0, "nothing was preempted: the claim was not tried")
                self.assertEqual(swapped > 0, preemption == "swap")
                self.assertEqual(cluster.await_quiet(40), [])


if __name__ == "__main__":
    BATON = sys.argv.pop(1)
    unittest.main(verbosity=2)
