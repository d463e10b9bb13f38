#!/usr/bin/env python3
"""The same bits whatever the numbers of ranks on either side: random models on CPUs, and on emulated
GPUs whose K/V goes over the emulated NCCL, by return_logits_digest. BATON_NIGHTLY=1 tries all sizes
on either side with all models, else a fixed few.

Usage: tp_bits_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import itertools
import os
import pathlib
import sys
import tempfile
import time
import unittest

import random_model
from api_client import metric_sum
from emulated_test import ask
from running_cluster import RunningCluster, at_once

BIN = None
NIGHTLY = "BATON_NIGHTLY" in os.environ
NUM_BLOCKS = 64
NCCL_LIMIT_S = 200  # Until all pairs of ranks are connected.
SIZES = (1, 2, 4, 8)
# As many K/V heads as ranks, fewer, and one; of which some weights are the embedding's.
MODELS = [dict(kv_heads=2, dtype="BF16"), dict(kv_heads=8), dict(kv_heads=4, dtype="BF16", tied=True),
          dict(kv_heads=1), dict(kv_heads=2, tied=True, hidden=160),
          dict(kv_heads=4, sizes=random_model.Sizes(head_dim=64, ffn=512)),
          dict(kv_heads=8, dtype="BF16", sizes=random_model.Sizes(layers=5)),
          dict(kv_heads=1, dtype="BF16", tied=True, sizes=random_model.Sizes(ffn=768, layers=3))]
PAIRS = list(itertools.product(SIZES, SIZES)) if NIGHTLY else [(4, 2), (2, 8)]
DEVICES = ("cuda", "cpu") if NIGHTLY else ("cuda",)  # tp_test has CPUs.


def requests(salt):
    """Around the ends of blocks and chunks; no two have a beginning in common."""
    greedy = [dict(prompt=[2 + salt + n] + [2 + (i * i * 7 + i * 31 + n) % 200 for i in range(1, n)],
                   max_tokens=4, temperature=0, ignore_eos=True) for n in (1, 16, 17, 40)]
    return greedy + [dict(greedy[-1], temperature=0.9, top_p=0.95, seed=7)]


class TpBitsTest(unittest.TestCase):
    def setUp(self):
        library = BIN.parent / "kernels/emulation/nccl/libnccl_emulated.so"
        for name, value in (("BATON_NCCL_LIBRARY", str(library)),
                            ("BATON_EMULATED_GPU", f"detector=off arch=sm100 devices={max(SIZES)}")):
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name, None)

    @staticmethod
    def cluster(model, device, prefill, decode):
        more = {"cpu": dict(compute_dtype="f32"),
                "cuda": dict(gpu_graphs="off", kv_transport="nccl")}[device]
        return RunningCluster(BIN / "baton", "tp-bits", model=model, device=device, threads=1,
                              num_blocks=NUM_BLOCKS, max_model_len=128, chunk_tokens=32,
                              tp_prefill=prefill, tp_decode=decode, **more)

    def links(self, cluster, transport):
        return sum(metric_sum(w["metrics_url"], "baton_kv_links", transport=transport)
                   for w in cluster.workers())

    def connect(self, cluster):
        """Connections are made by the first handoffs, and communicators beside them."""
        deadline = time.monotonic() + NCCL_LIMIT_S
        for salt in itertools.count(1):
            ask(cluster, requests(salt % 100)[0])
            if self.links(cluster, "nccl") and not self.links(cluster, "tcp"):
                return
            self.assertLess(time.monotonic(), deadline, cluster.log("decode-0")[-2000:])
            time.sleep(0.1)

    def answers(self, model, device, prefill, decode):
        with self.cluster(model, device, prefill, decode) as cluster:
            if device == "cuda":
                self.connect(cluster)
            answers = at_once([lambda r=r: ask(cluster, r) for r in requests(0)])
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            self.assertEqual(cluster.await_quiet(NUM_BLOCKS), [])
            if device == "cuda":
                carried = sum(metric_sum(w["metrics_url"], "baton_kv_transport_bytes_accepted_total",
                                         transport="nccl") for w in cluster.workers("decode"))
                self.assertGreater(carried, 0)
                self.assertIn("prefill-0 -> decode-0: K/V over NCCL 2.23.4",
                              cluster.baton("status").stdout)
            return answers

    def test_ranks_on_either_side_change_no_bit(self):
        for (n, options), device in itertools.product(enumerate(MODELS if NIGHTLY else MODELS[:1]),
                                                      DEVICES):
            with tempfile.TemporaryDirectory() as folder:
                model = random_model.write(pathlib.Path(folder) / "m", seed=n, **options)
                expected = self.answers(model, device, 1, 1)
                digests = [d for _, row in expected for d in row]
                self.assertGreater(len(set(digests)), len(digests) * 0.7)
                for pair in PAIRS:
                    if pair == (1, 1):
                        continue
                    with self.subTest(device=device, pair=pair, **options):
                        self.assertEqual(self.answers(model, device, *pair), expected)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
