#!/usr/bin/env python3
"""What clusters on emulated GPUs serve, and with whom: every random model against transformers, f16,
fp8 K/V; and CPU workers beside GPU workers, which never share a request.

Usage: emulated_models_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import contextlib
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from emulated_test import FAST, REQUESTS, answers_of, ask
from process_cluster import ProcessCluster, await_true
from running_cluster import RunningCluster

BIN = None
MODELS = pathlib.Path(__file__).resolve().parents[1] / "golden" / "models"
TOKENS = 6
NIGHTLY = "BATON_NIGHTLY" in os.environ
# One of each family: some 5 s each.
CPU_MODELS = ("gemma2", "phi3-window", "phi3-longrope-crossing", "mixtral-window-shards",
              "qwen2-moe", "opt", "bloom", "neox")
NIGHTLY_CPU_MODELS = ("gemma3", "qwen3-moe", "opt-post-norm", "phi3-longrope-shards",
                      "phi3-partial", "neox-sequential-shards", "bloom-normed-residual")


def served_model(name, folder):
    """A random model with a tokenizer of as many words, which the router asks for."""
    model = pathlib.Path(folder) / name
    shutil.copytree(MODELS / name, model)
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    words = {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(size)}, "unk_token": "w0"}
    (model / "tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
         "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
         "decoder": None, "model": words}))
    return model, json.loads((model / "golden.json").read_text())


def gpus_serve(config):
    """Heads of multiples of 8. Layers of experts, of which K/V knows nothing, are for
    tests/kernels/cuda: here they would only take time."""
    hidden = config.get("hidden_size") or config["n_embed"]
    heads = config.get("num_attention_heads") or config["n_head"]
    head_dim = config.get("head_dim") or hidden // heads
    return "num_experts_per_tok" not in config and head_dim % 8 == 0


def rms(differences):
    return math.sqrt(sum(d * d for d in differences) / len(differences))


class EmulatedModelsTest(unittest.TestCase):
    def setUp(self):
        os.environ["BATON_EMULATED_GPU"] = FAST
        self.addCleanup(os.environ.pop, "BATON_EMULATED_GPU", None)

    def scores(self, cluster, golden):
        """The differences of all prompts' log probabilities from transformers' in f32."""
        differences = []
        for case in (c for c in golden["cases"] if len(c["prompt_ids"]) > 1):
            answer = cluster.post("/v1/completions", prompt=case["prompt_ids"], max_tokens=0,
                                  echo=True, logprobs=0)
            scores = answer["choices"][0]["logprobs"]["token_logprobs"][1:]
            self.assertEqual(len(scores), len(case["prompt_logprobs"]))
            differences += [a - b for a, b in zip(scores, case["prompt_logprobs"])]
        return differences

    def check_answer(self, cluster, case):
        """Decode goes on from what prefill handed over: its logits are a prefill's of all before."""
        request = dict(max_tokens=TOKENS, temperature=0, ignore_eos=True)
        tokens, digests = ask(cluster, dict(request, prompt=case["prompt_ids"]))
        prompt = case["prompt_ids"] + tokens[:-1]
        self.assertEqual(ask(cluster, dict(request, prompt=prompt, max_tokens=1)),
                         (tokens[-1:], digests[-1:]))

    def test_random_models_answer_as_transformers_does(self):
        fp8 = {"qwen3-bias-shards": {"kv_dtype": "fp8_e4m3"}}
        for name in sorted(path.name for path in MODELS.iterdir()):
            if not gpus_serve(json.loads((MODELS / name / "config.json").read_text())):
                continue
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                self.check_model(*served_model(name, folder), fp8.get(name, {}))

    def check_model(self, model, golden, options):
        """In the noise of its compute dtype, that of its weights but for f32's, which is bf16; the
        same bits in other batches, chunks and blocks, without graphs."""
        config = json.loads((model / "config.json").read_text())
        dtype = config.get("torch_dtype") or config["dtype"]
        computes, factor = ("f16", 1 / 4) if dtype == "float16" else ("bf16", 2)
        kv = options.get("kv_dtype", computes)
        with self.cluster(model, **options) as cluster:
            self.assertIn(f"compute={computes} kv={kv}", cluster.log("decode-0"))
            for worker in ("prefill-0", "decode-0"):
                self.assertEqual("f32 weights are computed in another type" in
                                 cluster.log(worker), dtype == "float32")
            off = rms(self.scores(cluster, golden))
            # K/V in fp8 may cost twice as much again; tests/kernels/cuda compares with the CPU's.
            self.assertLessEqual(off, factor * golden["bf16_rms"] * (1 if kv == computes else 2))
            self.assertGreater(off, 0, "nothing was rounded")
            self.check_answer(cluster, golden["cases"][2])
            requests = [dict(prompt=case["prompt_ids"], max_tokens=TOKENS, temperature=0,
                             ignore_eos=True) for case in golden["cases"]]
            expected = answers_of(cluster, requests, together=False)
        with self.cluster(model, gpu_graphs="off", chunk_tokens=7, block_size=8,
                          **options) as cluster:
            self.assertEqual(answers_of(cluster, requests), expected)

    def test_models_answer_on_cpus_as_transformers_does(self):
        for name in CPU_MODELS + (NIGHTLY_CPU_MODELS if NIGHTLY else ()):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                model, golden = served_model(name, folder)
                requests = [dict(prompt=case["prompt_ids"], max_tokens=TOKENS, temperature=0,
                                 ignore_eos=True) for case in golden["cases"]]
                cpu = dict(device="cpu", compute_dtype="f32")
                with self.cluster(model, **cpu) as cluster:
                    self.assertLess(max(map(abs, self.scores(cluster, golden))), 2e-3)
                    self.check_answer(cluster, golden["cases"][2])
                    expected = answers_of(cluster, requests, together=False)
                with self.cluster(model, chunk_tokens=7, block_size=8, **cpu) as cluster:
                    self.assertEqual(answers_of(cluster, requests), expected)

    def cluster(self, model, device="cuda", **options):
        return RunningCluster(BIN / "baton", "emulated-models", model=model, device=device,
                              num_blocks=64, threads=1, max_batch_sequences=4, **options)

    def test_heads_that_no_kernel_has_are_refused_at_the_start(self):
        with tempfile.TemporaryDirectory() as folder:
            model = served_model("mistral-window", folder)[0]
            config = json.loads((model / "config.json").read_text())
            for head_dim in (12, 264):
                (model / "config.json").write_text(json.dumps(config | {"head_dim": head_dim}))
                for role in ("prefill", "decode"):
                    done = subprocess.run(
                        [BIN / f"baton-{role}", "--model", model, "--port", "0", "--device", "cuda"],
                        capture_output=True, text=True, timeout=60)
                    line = done.stderr.strip().splitlines()[-1]
                    self.assertEqual(done.returncode, 2, line)
                    self.assertIn(f"head_dim = {head_dim}: GPUs serve multiples of 8 up to 256; "
                                  "use --device cpu", line)

    @contextlib.contextmanager
    def mixed_cluster(self):
        """A CPU and a GPU worker of each role."""
        cluster = ProcessCluster(BIN, "emulated-mixed", worker={"num_blocks": 64})
        for server in cluster.workers:
            server.arguments += ["--device", "cpu" if server.name.endswith("0") else "cuda",
                                 "--max-batch-sequences", "4"]
        with cluster:
            yield cluster

    def kill(self, cluster, *servers):
        for server in servers:
            server.signal(signal.SIGKILL)
            server.await_exit()
        await_true(lambda: set(cluster.unhealthy()) == {s.name for s in servers}, 30,
                   "the router sees who is gone")

    def test_cpu_and_gpu_workers_never_share_a_request(self):
        with self.mixed_cluster() as cluster:
            on_cpu, on_gpu = zip(cluster.prefill, cluster.decode)
            known = {}
            for name, absent in (("gpu", on_cpu), ("cpu", on_gpu)):
                self.kill(cluster, *absent)
                known[name] = ask(cluster, REQUESTS[2])
                for server in absent:
                    cluster.restart(server)
            self.assertFalse(set(known["cpu"][1]) & set(known["gpu"][1]))
            # Whoever is asked, both tokens of an answer come from one kind of worker.
            for _ in range(6):
                self.assertIn(ask(cluster, REQUESTS[2]), known.values())
            # Beside a prefill worker of the other kind a decode worker computes prompts itself.
            for prefill, decode, kind in ((on_cpu[0], on_gpu[1], "gpu"),
                                          (on_gpu[0], on_cpu[1], "cpu")):
                others = [s for s in cluster.workers if s not in (prefill, decode)]
                self.kill(cluster, *others)
                self.assertEqual(ask(cluster, REQUESTS[2]), known[kind])
                await_true(lambda: cluster.said_of(decode)["alone"], 30, "it computes prompts itself")
                for server in others:
                    server.launch()
                for server in others:
                    server.await_start()
                    cluster.await_healthy(server)
                self.assertIn(ask(cluster, REQUESTS[2]), known.values())
            self.assertEqual(cluster.await_quiet(), {})


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
