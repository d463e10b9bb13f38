#!/usr/bin/env python3
"""Workers of several tensor-parallel ranks: the same bits whatever --tp on either side, through
handoffs, prefix hits and lost workers; and what is refused.

Usage: tp_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import random_model
from amid_streams import MAX_TRIES, AmidStreams, texts
from api_client import metric_sum
from bits_test import ask
from process_cluster import await_true
from running_cluster import MODEL, RunningCluster, at_once

BIN = None
NUM_BLOCKS = 256


def requests(vocabulary):
    """Around the ends of blocks and chunks; the last has a prefix of the one before."""
    def prompt(length, salt=0):
        return [0] + [2 + (i * i * 7 + i * 31 + salt * 101) % (vocabulary - 2)
                      for i in range(1, length)]
    greedy = [dict(prompt=prompt(n, n), max_tokens=12, temperature=0, ignore_eos=True)
              for n in (1, 16, 17, 130)]
    return greedy + [dict(prompt=prompt(130, 130) + [5], max_tokens=12, temperature=0.9, top_p=0.95,
                          seed=7, ignore_eos=True)]


class TpTest(AmidStreams, unittest.TestCase):
    def cluster(self, model=MODEL, **options):
        defaults = dict(model=model, num_blocks=NUM_BLOCKS, chunk_tokens=64, device="cpu",
                        compute_dtype="f32")
        return RunningCluster(BIN / "baton", "tp", **{**defaults, **options})

    def answers(self, vocabulary, **options):
        """(tokens, digests) of each request, one by one, then of all at once; nothing stays held."""
        with self.cluster(**options) as cluster:
            calls = [lambda r=r: ask(cluster, r)[:2] for r in requests(vocabulary)]
            alone = [call() for call in calls]
            self.assertEqual(at_once(calls), alone)
            self.assertEqual(cluster.await_quiet(NUM_BLOCKS), [])
            audit = cluster.baton("audit", "--interval-s", "0.2", check=False)
            self.assertEqual(audit.returncode, 0, audit.stdout + audit.stderr)
            return alone

    def check_pairs(self, pairs, vocabulary, **options):
        expected = self.answers(vocabulary, **options)
        digests = [d for _, row in expected for d in row]
        self.assertGreater(len(set(digests)), len(digests) * 0.9)
        for prefill, decode in pairs:
            with self.subTest(prefill=prefill, decode=decode):
                self.assertEqual(self.answers(vocabulary, tp_prefill=prefill, tp_decode=decode,
                                              **options), expected)

    def test_two_ranks_have_the_bits_of_one(self):
        self.check_pairs([(2, 2), (1, 2), (2, 1)], vocabulary=4096)

    def test_ranks_that_share_a_head_have_the_bits_of_one(self):
        with tempfile.TemporaryDirectory() as folder:
            model = random_model.write(pathlib.Path(folder) / "m", seed=1, kv_heads=2, dtype="BF16")
            self.check_pairs([(2, 4), (4, 1), (8, 2)], random_model.VOCAB, model=model,
                             compute_dtype="bf16")

    def test_ranks_that_all_have_one_head_have_the_bits_of_one(self):
        with tempfile.TemporaryDirectory() as folder:
            model = random_model.write(pathlib.Path(folder) / "m", seed=2, kv_heads=1, tied=True)
            self.check_pairs([(8, 1), (4, 8)], random_model.VOCAB, model=model)

    def test_killed_worker_of_two_ranks_costs_no_token(self):
        with self.cluster(tp=2, decode=2, num_blocks=1024) as cluster:
            undisturbed = self.start_streams(cluster, 4, max_tokens=600)(60)
            for _ in range(MAX_TRIES):
                join, (victim, survivor) = self.stop_amid_streams(cluster, 4, max_tokens=600)
                os.kill(victim["pid"], signal.SIGKILL)
                os.kill(survivor["pid"], signal.SIGCONT)
                self.assertEqual(texts(join(60)), texts(undisturbed))
                self.assertEqual(cluster.await_quiet(1024), [])
                if cluster.metric("baton_moves_total"):
                    break
            else:
                self.fail(f"in {MAX_TRIES} tries the killed worker had no stream to lose")
            self.assertEqual(cluster.baton("audit", "--interval-s", "0.2").returncode, 0)

    def test_worker_that_was_stopped_for_8_s_goes_on(self):
        with self.cluster(tp=2, decode=1, num_blocks=1024) as cluster:
            undisturbed = self.start_streams(cluster, 2, max_tokens=600)(60)
            pids = [worker["pid"] for worker in cluster.workers()]
            join, (worker,) = self.stop_amid_streams(cluster, 2, max_tokens=600)
            stopped = time.monotonic()
            await_true(lambda: not cluster.workers("decode")[0]["healthy"], 30, "it is fenced")
            # Sequences wait ten seconds behind the fence for a worker to come back.
            time.sleep(max(0.0, stopped + 8 - time.monotonic()))
            os.kill(worker["pid"], signal.SIGCONT)
            self.assertEqual(texts(join(60)), texts(undisturbed))
            self.assertEqual([worker["pid"] for worker in cluster.workers()], pids)
            self.assertEqual(cluster.await_quiet(1024), [])

    def test_operators_see_the_ranks(self):
        with self.cluster(tp_prefill=1, tp_decode=2) as cluster:
            self.assertEqual({w["role"]: w["tp"] for w in cluster.workers()},
                             {"prefill": 1, "decode": 2})
            table = [line.split() for line in cluster.baton("status").stdout.splitlines()]
            (column,) = [words.index("tp") for words in table if "tp" in words]
            self.assertEqual({words[0]: words[column] for words in table
                              if words[0] in ("prefill", "decode")}, {"prefill": "1", "decode": "2"})
            self.see_open_legs(cluster)

    def see_open_legs(self, cluster):
        """Until an audit finds a transfer under way: a leg to each rank of the decode worker."""
        done = threading.Event()
        prompt = [2 + i % 4000 for i in range(1500)]

        def load(salt):
            while not done.is_set():
                cluster.post("/v1/completions", prompt=[2 + salt, *prompt], max_tokens=2)
                salt += 8
        threads = [threading.Thread(target=load, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        seen = {"prefill": set(), "decode": set()}

        def look():
            report = json.loads(cluster.baton("audit", "--json", "--interval-s", "0.2").stdout)
            for worker in report["workers"]:
                seen[worker["role"]] |= {tuple(call["leg_ranks"]) for call in worker["calls"]}
            return (0, 1) in seen["decode"] and (0, 0) in seen["prefill"]
        try:
            await_true(look, 60, lambda: f"open legs: {seen}")
        finally:
            done.set()
            for thread in threads:
                thread.join()
        self.assertLessEqual(seen["decode"], {(), (0,), (1,), (0, 1)})
        self.assertLessEqual(seen["prefill"], {(), (0,), (0, 0)})

    def test_doctor_tells_of_ranks(self):
        done = subprocess.run([BIN / "baton", "doctor", "--tp", "2"], capture_output=True, text=True,
                              timeout=60)
        self.assertIn(f"--tp 2 on {os.cpu_count()} cores", done.stdout)

    def memory(self, model, tp):
        """(bytes that are no file's, [(weights, pool) of each rank]) of a worker that has started."""
        ready = model / "ready.json"
        worker = subprocess.Popen(
            [BIN / "baton-decode", "--model", model, "--tp", str(tp), "--device", "cpu", "--threads",
             "1", "--compute-dtype", "bf16", "--num-blocks", "512", "--port", "0", "--metrics-port",
             "0", "--ready-file", ready], stderr=subprocess.DEVNULL)
        try:
            await_true(ready.exists, 60, "the worker listens")
            url = json.loads(ready.read_text())["metrics_url"]
            ranks = [tuple(metric_sum(url, "baton_rank_memory_bytes", rank=r, by=by)
                           for by in ("weights", "kv_cache")) for r in range(tp)]
            status = pathlib.Path(f"/proc/{worker.pid}/status").read_text()
            return 1024 * int(status.split("RssAnon:")[1].split()[0]), ranks
        finally:
            worker.kill()
            worker.wait()
            ready.unlink(missing_ok=True)

    def test_a_rank_takes_its_part_of_the_memory(self):
        kv_heads = 2
        with tempfile.TemporaryDirectory() as folder:
            model = random_model.write(
                pathlib.Path(folder) / "m", seed=1, kv_heads=kv_heads, dtype="BF16", hidden=512,
                sizes=random_model.Sizes(head_dim=64, ffn=2048, layers=12, vocab=8192))
            of_one, ((weights, pool),) = self.memory(model, 1)
            self.assertGreater(weights, 100e6)
            beside = of_one - weights  # The pool is touched block by block.
            self.assertLess(beside, 0.1 * weights)
            for tp in (2, 4, 8):
                taken, ranks = self.memory(model, tp)
                for rank in ranks:
                    self.assertLess(rank[0], 1.15 * weights / tp, f"of {tp}")
                    self.assertEqual(rank[1], pool / min(tp, kv_heads), f"of {tp}")
                self.assertLess(taken - beside, 1.15 * weights, f"all {tp} ranks together")

    def test_model_that_does_not_divide_is_refused_in_one_line(self):
        for role in ("prefill", "decode"):
            done = subprocess.run([BIN / f"baton-{role}", "--model", MODEL, "--port", "0", "--device",
                                   "cpu", "--tp", "4"], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 2, done.stderr)
            (line,) = done.stderr.strip().splitlines()
            self.assertIn("num_attention_heads = 6", line)
            self.assertIn("tp = 4", line)
            self.assertIn("this model allows 1, 2", line)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
