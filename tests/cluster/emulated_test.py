#!/usr/bin/env python3
"""Whole clusters on emulated GPUs: the kernels, the runner and the handoff that run on real ones.

Usage: emulated_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

from api_client import metric_sum
from process_cluster import await_true
from running_cluster import RunningCluster, at_once

BIN = None
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "tiny-kjv.json"
NUM_BLOCKS = 64
TOKENS = 8
# The detectors of the emulation are for the kernel tests, and so are the forms of sm_90a, whose bits
# those of sm_100 are: here they would take most of the time. A cluster of emulated_starts_test.py
# has them.
FAST = "detector=off arch=sm100"


MAX_TRIES = 5


@functools.cache
def on_a_gpu():
    """Whether the programs compute on a real one, which ends in milliseconds what the emulation
    takes seconds for: what must overlap or be met half-way there is longer."""
    done = subprocess.run([BIN / "baton-decode", "--list-gpus"], capture_output=True, text=True,
                          timeout=60, check=True)
    return json.loads(done.stdout.splitlines()[-1])["build"] == "cuda"


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


def fault_amid(cluster, request, fault):
    """A stream's tokens. Its decode worker is killed before it has ended, or stands still until
    then, if it was stopped in time and is the one that the last status shows."""
    ended = cluster.ended_requests()
    stream = cluster.open_stream("/v1/completions", return_token_ids=True, **request)
    tokens = list(next(stream)["choices"][0]["token_ids"])
    busy = await_true(lambda: [w for w in cluster.workers("decode") if w["running"]] or
                      cluster.ended_requests() > ended, 20, "a worker decodes")
    is_amid = busy is not True
    if is_amid:
        os.kill(busy[0]["pid"], signal.SIGSTOP)
        is_amid = cluster.ended_requests() == ended
        os.kill(busy[0]["pid"], fault if is_amid else signal.SIGCONT)
    for event in stream:
        tokens += event["choices"][0]["token_ids"]
    if is_amid and fault == signal.SIGSTOP:
        os.kill(busy[0]["pid"], signal.SIGCONT)
    return tokens


def kill_amid_handoffs(cluster, requests):
    """The answers. The first prefill worker that has sent a part of them is killed."""
    workers = cluster.workers("prefill")

    def sent(worker):
        return metric_sum(worker["metrics_url"], "baton_kv_transfer_bytes_total")
    before = [sent(worker) for worker in workers]
    answers = []
    client = threading.Thread(target=lambda: answers.extend(at_once([
        lambda r=r: ask(cluster, r) for r in requests])))
    client.start()
    sender = await_true(lambda: [w for w, count in zip(workers, before) if sent(w) > count],
                        60, "a worker hands over", pause=0)[0]
    os.kill(sender["pid"], signal.SIGKILL)
    client.join()
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

    def loaded(self, cluster):
        return next(l for l in cluster.log("decode-0").splitlines() if "model loaded" in l)


class BitsTest(EmulatedTest):
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
        # Two of these do not fit into the pool together, one does.
        tokens, blocks = (600, 40) if on_a_gpu() else (3 * TOKENS, 4)
        requests = [dict(r, max_tokens=tokens) for r in REQUESTS[2:4]]
        pool = dict(num_blocks=blocks, max_model_len=16 * blocks)
        with self.cluster(**pool) as cluster:
            expected = answers_of(cluster, requests, together=False)
        for preemption in ("recompute", "swap"):
            with self.subTest(preemption), self.cluster(**pool, preemption=preemption) as cluster:
                url = cluster.workers("decode")[0]["metrics_url"]
                for _ in range(MAX_TRIES):
                    self.assertEqual(answers_of(cluster, requests), expected)
                    if metric_sum(url, "baton_preemptions_total"):
                        break
                else:
                    self.fail(f"in {MAX_TRIES} tries the answers did not meet")
                swapped = metric_sum(url, "baton_swapped_sequences_total")
                self.assertEqual(swapped > 0, preemption == "swap")
                self.assertEqual(cluster.await_quiet(blocks), [])

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

    def test_ranks_on_gpus_hand_over_to_one_and_one_to_them_with_the_bits_of_one(self):
        expected = self.reference()
        for graphs, options in (
                (0, dict(tp_prefill=2, tp_decode=1)),
                (4, dict(tp_prefill=1, tp_decode=2, device="cuda:1", gpu_graphs="on",
                         chunk_tokens=7))):  # Steps of at most 7 rows.
            os.environ["BATON_EMULATED_GPU"] = f"{FAST} devices=3"
            with self.subTest(**options), self.cluster("emulated-ranks", **options) as cluster:
                self.assertEqual({w["role"]: w["tp"] for w in cluster.workers()},
                                 {"prefill": options["tp_prefill"], "decode": options["tp_decode"]})
                self.assertEqual(answers_of(cluster), expected)
                url = cluster.workers("decode")[0]["metrics_url"]
                self.assertGreater(metric_sum(url, "baton_handoffs_total"), 0)
                self.assertIn(f"graphs={graphs}", self.loaded(cluster))
                self.assertEqual(cluster.await_quiet(NUM_BLOCKS), [])

    def test_doctor_shows_the_gpus_that_workers_see(self):
        for emulated, shows in (
                ("memory=2147483648",
                 ("ok   GPU 0      emulated sm_90, sm_90, 2.0 GiB free of 2.0 GiB",
                  "knows CUDA 13.0, emulated")),
                ("arch=sm80 memory=1073741824", ("emulated sm_80, sm_80, 1.0 GiB free",)),
                ("arch=sm75", ("!!   GPU 0      emulated sm_75", "sm_80 is needed")),
                ("devices=2 arch=sm90,sm80", ("ok   GPU 0      emulated sm_90",
                                              "ok   GPU 1      emulated sm_80")),
                ("devices=0", ("!!   GPU driver", "shows no GPU")),
                ("driver=12020", ("!!   GPU driver knows CUDA 12.2", "CUDA 13 is needed")),
                ("driver=0", ("!!   GPU driver no NVIDIA driver, emulated", "580 or later"))):
            with self.subTest(emulated):
                done = subprocess.run([BIN / "baton", "doctor"], capture_output=True, text=True,
                                      env={**os.environ, "BATON_EMULATED_GPU": emulated}, timeout=60)
                for text in (*shows, "--device auto takes cpu: the GPU is emulated"):
                    self.assertIn(text, done.stdout)
                self.assertEqual(done.returncode, 1 if "!!" in done.stdout else 0)

    def test_doctor_tells_which_nccl_is_found_though_it_has_no_gpu_itself(self):
        library = BIN.parent / "kernels/emulation/nccl/libnccl_emulated.so"
        done = subprocess.run([BIN / "baton", "doctor"], capture_output=True, text=True,
                              env={**os.environ, "BATON_NCCL_LIBRARY": str(library)}, timeout=60)
        self.assertIn(f"ok   NCCL       2.23.4 ({library})", done.stdout)

    def nccl(self, faults=""):
        """Workers find the emulated NCCL from now on."""
        library = BIN.parent / "kernels/emulation/nccl/libnccl_emulated.so"
        for name, value in (("BATON_NCCL_LIBRARY", str(library)), ("BATON_EMULATED_NCCL", faults)):
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name, None)

    def carried(self, cluster):
        """Bytes that decode workers have taken over NCCL, and over TCP."""
        return [sum(metric_sum(w["metrics_url"], "baton_kv_transport_bytes_accepted_total",
                               transport=transport) for w in cluster.workers("decode"))
                for transport in ("nccl", "tcp")]

    def ask_until_nccl(self, cluster, number):
        """The answers of so many requests in a row whose K/V went over NCCL alone. The pair is made
        beside the first requests, and made again if the machine was too busy for it."""
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            before = self.carried(cluster)
            ask(cluster, REQUESTS[0])
            if self.carried(cluster)[0] == before[0]:
                continue
            before = self.carried(cluster)
            answers = [ask(cluster, request) for request in REQUESTS[1:1 + number]]
            after = self.carried(cluster)
            if after[0] > before[0] and after[1] == before[1]:
                return answers
        self.fail(f"K/V does not go over NCCL: {cluster.log('decode-0')[-2000:]}")

    def test_kv_over_nccl_gives_the_bits_of_tcp(self):
        expected = self.reference()[1:4]
        self.nccl()
        with self.cluster(kv_transport="nccl") as cluster:
            self.assertEqual(self.ask_until_nccl(cluster, 3), expected)
            for role in ("prefill", "decode"):
                self.assertIn("K/V goes over NCCL", cluster.log(f"{role}-0"))
                url = cluster.workers(role)[0]["metrics_url"]
                self.assertEqual(metric_sum(url, "baton_kv_links", transport="nccl"), 1)
            self.assertEqual(cluster.await_quiet(NUM_BLOCKS), [])

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

    def numerics(self, cluster):
        return self.loaded(cluster).split('numerics="')[1].split('"')[0]


class FaultsTest(EmulatedTest):
    def test_killed_decode_worker_costs_no_token(self):
        request = dict(REQUESTS[2], max_tokens=1500 if on_a_gpu() else 50)
        blocks = 128 if on_a_gpu() else NUM_BLOCKS
        with self.cluster(decode=2, num_blocks=blocks, max_model_len=16 * blocks) as cluster:
            expected = ask(cluster, request)[0]
            for _ in range(MAX_TRIES):
                self.assertEqual(fault_amid(cluster, request, signal.SIGKILL), expected)
                if cluster.metric("baton_moves_total"):
                    break
            else:
                self.fail(f"in {MAX_TRIES} tries no stream lost its worker before it had ended")
            self.assertIn("killed by signal 9", cluster.log("baton-up"))
            self.assertEqual(cluster.await_quiet(blocks), [])

    def test_stopped_decode_worker_costs_no_token_and_serves_again(self):
        request = dict(REQUESTS[2], max_tokens=1500 if on_a_gpu() else 50)
        blocks = 128 if on_a_gpu() else NUM_BLOCKS
        with self.cluster(decode=2, num_blocks=blocks, max_model_len=16 * blocks) as cluster:
            expected = ask(cluster, request)[0]
            for _ in range(MAX_TRIES):
                self.assertEqual(fault_amid(cluster, request, signal.SIGSTOP), expected)
                self.assertEqual(cluster.await_quiet(blocks, seconds=60), [])
                if cluster.metric("baton_moves_total"):
                    break
            else:
                self.fail(f"in {MAX_TRIES} tries no stream stood still before it had ended")
            self.assertEqual(answers_of(cluster), self.reference())
            self.restart_under_load(cluster)
            self.assertEqual(cluster.await_quiet(blocks, seconds=60), [])

    def restart_under_load(self, cluster):
        """A rolling restart of all workers, each of which drains: users see nothing of it."""
        expected = self.reference()
        restarted, answers = threading.Event(), []

        def keep_asking():
            while not restarted.is_set():
                answers.extend(at_once([lambda: answers_of(cluster)]))

        client = threading.Thread(target=keep_asking)
        client.start()
        try:
            done = cluster.baton("restart", check=False)
        finally:
            restarted.set()
            client.join()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("serves again"), 3, done.stdout)
        self.assertEqual(answers, [expected] * len(answers))
        self.assertTrue(answers, "no answer came during the restart")

    def test_killed_prefill_worker_amid_handoffs_costs_no_token(self):
        # Each chunk is handed over once it is computed, long before the last one.
        tokens, blocks = (1000, 512) if on_a_gpu() else (120, NUM_BLOCKS)
        with self.cluster(prefill=2, chunk_tokens=8, num_blocks=blocks,
                          max_model_len=4 * blocks) as cluster:
            for n in range(MAX_TRIES):
                requests = [dict(REQUESTS[0], prompt=prompt(tokens, salt=6 * n + i))
                            for i in range(6)]
                answers = kill_amid_handoffs(cluster, requests)
                self.assertEqual(cluster.await_quiet(blocks, seconds=60), [])
                self.assertEqual(answers, answers_of(cluster, requests, together=False))
                if cluster.metric("baton_moves_total"):
                    return
        self.fail(f"in {MAX_TRIES} tries no handoff lost its worker")

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

    def test_lost_device_of_a_rank_ends_its_process_and_costs_no_request(self):
        expected = self.reference()
        os.environ["BATON_EMULATED_GPU"] = f"{FAST} devices=2 lose=3000"
        with self.cluster("emulated-ranks", decode=2, tp_decode=2) as cluster:
            for _ in range(20):
                self.assertEqual(answers_of(cluster), expected)
                if re.search("decode.*exit code 70", cluster.log("baton-up")):
                    return
        self.fail("no device was lost: the claim was not tried")


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
