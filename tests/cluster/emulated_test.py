#!/usr/bin/env python3
"""Whole clusters on emulated GPUs: the kernels, the runner and the handoff that run on real ones.

Usage: emulated_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

from api_client import metric_sum
from process_cluster import await_true
from running_cluster import MODEL, RunningCluster, at_once

BIN = None
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "tiny-kjv.json"
NUM_BLOCKS = 64
TOKENS = 8
# The detectors of the emulation are for the kernel tests; here they would take most of the time.
FAST = "detector=off"


def prompt(length, salt=0):
    """Token ids of plain text pieces, different for each salt."""
    return [0] + [300 + (i * i * 7 + i * 31 + salt * 101) % 3700 for i in range(1, length)]


REQUESTS = [dict(prompt=prompt(n), max_tokens=TOKENS, temperature=0, ignore_eos=True)
            for n in (1, 15, 17, 24)]
REQUESTS.append(dict(prompt=prompt(9, salt=5), max_tokens=TOKENS, temperature=0.9, top_p=0.95,
                     seed=7, repetition_penalty=1.1, ignore_eos=True))


def ask(cluster, request):
    choice = cluster.post("/v1/completions", return_logits_digest=True, return_token_ids=True,
                          **request)["choices"][0]
    assert len(choice["token_ids"]) == request["max_tokens"], choice
    return choice["token_ids"], choice["logits_digests"]


def words(cluster, request, digests):
    """What a user sees; with digests the logits go to the CPU, else the GPU chooses."""
    choice = cluster.post("/v1/completions", return_logits_digest=digests, return_token_ids=True,
                          logprobs=2, **request)["choices"][0]
    return choice["token_ids"], choice["logprobs"]


def answers_of(cluster, requests=REQUESTS, together=True):
    calls = [lambda r=r: ask(cluster, r) for r in requests]
    answers = at_once(calls) if together else [call() for call in calls]
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


class EmulatedTest(unittest.TestCase):
    def setUp(self):
        os.environ["BATON_EMULATED_GPU"] = FAST
        self.addCleanup(os.environ.pop, "BATON_EMULATED_GPU", None)

    def cluster(self, name="emulated", **options):
        # Graphs are captured after a pass each, at the start of each worker.
        options = {"device": "cuda", "num_blocks": NUM_BLOCKS, "max_model_len": 256, "threads": 1,
                   "gpu_graphs": "off", **options}
        return RunningCluster(BIN / "baton", name,
                              **{k: v for k, v in options.items() if v is not None})

    @classmethod
    def reference(cls):
        """The answers of one pair, one request at a time."""
        if not hasattr(cls, "known"):
            os.environ["BATON_EMULATED_GPU"] = FAST
            test = cls()
            with test.cluster("emulated-reference") as cluster:
                cls.known = answers_of(cluster, together=False)
                cls.cached = answers_of(cluster, together=False)
                cls.by_gpu, cls.by_cpu = ([words(cluster, r, digests) for r in REQUESTS[-2:]]
                                          for digests in (False, True))
        return cls.known

    def test_prefix_hit_changes_no_bit(self):
        self.reference()
        self.assertEqual(self.cached, self.known)
        self.assertGreater(len({d for _, row in self.known for d in row}), 3 * TOKENS)

    def test_gpu_chooses_what_the_cpu_chooses_of_its_logits(self):
        expected = self.reference()
        self.assertEqual(self.by_gpu, self.by_cpu)
        self.assertEqual([ids for ids, _ in self.by_gpu], [ids for ids, _ in expected[-2:]])

    def test_batch_chunks_blocks_graphs_and_number_of_workers_change_no_bit(self):
        expected = self.reference()  # Before the other cluster starts.
        with self.cluster(prefill=2, decode=2, chunk_tokens=7, block_size=8,
                          num_blocks=2 * NUM_BLOCKS, gpu_graphs="on") as cluster:
            self.assertIn("graphs=4", self.loaded(cluster))  # Of 1, 2, 4 and 8 rows.
            self.assertEqual(answers_of(cluster), expected)
            self.assertEqual(cluster.await_quiet(2 * NUM_BLOCKS), [])

    def test_preemption_changes_no_bit(self):
        requests = [dict(r, max_tokens=3 * TOKENS) for r in REQUESTS[2:4]]
        with self.cluster() as cluster:
            expected = answers_of(cluster, requests, together=False)
        for preemption in ("recompute", "swap"):
            with self.subTest(preemption), self.cluster(num_blocks=4, max_model_len=64,
                                                        preemption=preemption) as cluster:
                self.assertEqual(answers_of(cluster, requests), expected)
                url = cluster.workers("decode")[0]["metrics_url"]
                self.assertGreater(metric_sum(url, "baton_preemptions_total"), 0)
                swapped = metric_sum(url, "baton_swapped_sequences_total")
                self.assertEqual(swapped > 0, preemption == "swap")
                self.assertEqual(cluster.await_quiet(4), [])

    def test_answers_are_those_of_transformers_but_for_ties(self):
        golden = json.loads(GOLDEN.read_text())
        case = min(golden["cases"], key=lambda c: len(c["prompt_ids"]))
        with self.cluster() as cluster:
            ids, _ = ask(cluster, dict(prompt=case["prompt_ids"], max_tokens=TOKENS, temperature=0,
                                       ignore_eos=True))
        # Until bf16 may turn a choice over, which changes all that follows.
        certain = 0
        while certain < TOKENS and case["greedy_margins"][certain] > 0.5:
            certain += 1
        self.assertGreater(certain, 0, "nothing was compared")
        self.assertEqual(ids[:certain], case["greedy_ids"][:certain])

    def test_killed_decode_worker_costs_no_token(self):
        request = dict(REQUESTS[2], max_tokens=50)
        with self.cluster(decode=2) as cluster:
            expected = ask(cluster, request)
            stream = cluster.open_stream("/v1/completions", return_token_ids=True, **request)
            tokens = list(next(stream)["choices"][0]["token_ids"])
            busy = await_true(lambda: [w for w in cluster.workers("decode") if w["running"]], 20,
                              "a worker decodes")
            for worker in busy:
                os.kill(worker["pid"], signal.SIGKILL)
            for event in stream:
                tokens += event["choices"][0]["token_ids"]
            self.assertEqual(tokens, expected[0])
            self.assertIn("killed by signal 9", cluster.log("baton-up"))
            self.assertEqual(cluster.await_quiet(NUM_BLOCKS), [])

    def test_lost_device_ends_its_process_and_costs_no_request(self):
        expected = self.reference()
        # In every so many kernels of a worker, which some answers meet.
        os.environ["BATON_EMULATED_GPU"] = f"{FAST} lose=1500"
        with self.cluster(decode=2) as cluster:
            for _ in range(20):
                self.assertEqual(answers_of(cluster), expected)
                if "exit code 70" in cluster.log("baton-up"):
                    return
        self.fail("no device was lost: the claim was not tried")

    def start(self, role, *options, emulated=FAST):
        done = subprocess.run([BIN / f"baton-{role}", "--model", MODEL, "--port", "0", *options],
                              env={**os.environ, "BATON_EMULATED_GPU": emulated},
                              capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr.strip().splitlines()[-1]

    def test_what_cannot_start_says_why_in_one_line(self):
        for emulated, options, says in (
                ("devices=0", ["--device", "cuda"], "shows no GPU"),
                ("driver=0", ["--device", "cuda"], "no NVIDIA driver"),
                ("driver=12020", ["--device", "cuda"], "12.2"),
                ("arch=sm75", ["--device", "cuda"], "sm_75, and sm_80 is needed"),
                (FAST, ["--device", "cuda:3"], "cuda:3"),
                (FAST, ["--device", "gpu"], "--device gpu: must be"),
                (FAST, ["--device", "cuda", "--compute-dtype", "f32"], "compute_dtype = f32"),
                (FAST, ["--device", "cuda", "--kv-dtype", "f32"], "kv_dtype = f32"),
                ("memory=47000000", ["--device", "cuda"], "--chunk-tokens"),
                ("memory=60000000", ["--device", "cuda"], "--gpu-memory-fraction"),
                ("memory=1000000", ["--device", "cuda"], "GPU memory")):
            with self.subTest(says):
                code, line = self.start("decode", *options, emulated=emulated)
                self.assertEqual(code, 2, line)
                self.assertIn(says, line)

    def test_doctor_shows_the_gpus_that_workers_see(self):
        for emulated, shows in (
                ("memory=2147483648",
                 ("ok   GPU 0      emulated sm_90, sm_90, 2.0 GiB free of 2.0 GiB",
                  "knows CUDA 13.0, emulated")),
                ("arch=sm80 memory=1073741824", ("emulated sm_80, sm_80, 1.0 GiB free",)),
                ("arch=sm75", ("!!   GPU 0      emulated sm_75", "sm_80 is needed")),
                ("devices=0", ("!!   GPU driver", "shows no GPU")),
                ("driver=12020", ("!!   GPU driver knows CUDA 12.2", "CUDA 13 is needed")),
                ("driver=0", ("!!   GPU driver no NVIDIA driver, emulated", "580 or later"))):
            with self.subTest(emulated):
                done = subprocess.run([BIN / "baton", "doctor"], capture_output=True, text=True,
                                      env={**os.environ, "BATON_EMULATED_GPU": emulated}, timeout=60)
                for text in (*shows, "--device auto takes cpu: the GPU is emulated"):
                    self.assertIn(text, done.stdout)
                self.assertEqual(done.returncode, 1 if "!!" in done.stdout else 0)

    def test_auto_takes_the_cpu_and_says_why(self):
        with self.cluster(device="auto") as cluster:
            line = next(l for l in cluster.log("decode-0").splitlines() if "the CPU computes" in l)
            self.assertIn("the GPU is emulated", line)
            self.assertNotIn("emulated", self.loaded(cluster))

    def test_pool_is_what_the_fraction_of_the_memory_leaves(self):
        expected = self.reference()
        memory = 256_000_000
        os.environ["BATON_EMULATED_GPU"] = f"{FAST} memory={memory}"
        with self.cluster(num_blocks=None, gpu_memory_fraction=0.8) as cluster:
            share = 0.4 * memory  # Of one of two workers.
            taken = 32 * 2**20 + 6_000_000  # Scratch and weights, at least.
            line = self.loaded(cluster)
            pool = int(line.split("pool_bytes=")[1].split()[0])
            self.assertTrue(share / 4 < pool < share - taken, pool)
            url = cluster.workers("decode")[0]["metrics_url"]
            used = metric_sum(url, "baton_device_memory_used_bytes")
            self.assertTrue(pool + taken < used < share, used)
            self.assertEqual(metric_sum(url, "baton_device_memory_bytes"), memory)
            self.assertEqual(ask(cluster, REQUESTS[0]), expected[0])
            self.assertGreater(metric_sum(url, "baton_device_busy_seconds_total"), 0)

    def test_cpu_and_gpu_have_different_numerics_ids_by_which_workers_pair(self):
        ids = set()
        for device in ("cuda", "cpu"):
            with self.cluster(device=device) as cluster:
                ids.add(self.numerics(cluster))
        self.assertEqual(len(ids), 2)

    def loaded(self, cluster):
        return next(l for l in cluster.log("decode-0").splitlines() if "model loaded" in l)

    def numerics(self, cluster):
        return self.loaded(cluster).split('numerics="')[1].split('"')[0]


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
