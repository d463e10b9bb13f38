#!/usr/bin/env python3
"""Models with a sliding window through router, prefill and decode workers: the bits, and the blocks
that come back while an answer runs.

The models are tiny-kjv with a window of 70 tokens in its config.json, in all layers or in some: what
stays within 70 tokens has tiny-kjv's own bits.

Usage: window_test.py PATH_OF_BATON [unittest arguments]
"""
import json
import pathlib
import shutil
import struct
import sys
import tempfile
import threading
import unittest

from api_client import metric_sum
from bits_test import ask, bits, prompt, shape
from running_cluster import MODEL, RunningCluster

BATON = None
WINDOW = 70
# Within the window, across it, around blocks and partial attention, and far beyond.
LENGTHS = (16, 60, 70, 71, 100, 513, 900)
REQUESTS = [dict(prompt=prompt(n), max_tokens=100, temperature=0, ignore_eos=True)
            for n in LENGTHS]
REQUESTS += [dict(prompt=prompt(300, salt=5), max_tokens=100, temperature=0.9, top_p=0.95, seed=3,
                  repetition_penalty=1.1, ignore_eos=True)]
SHORT = dict(prompt=prompt(30), max_tokens=WINDOW - 30, temperature=0, ignore_eos=True)


def change_config(model, **fields):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | fields))
    return config


def copied_model(folder):
    model = pathlib.Path(folder) / "tiny-kjv-window"
    shutil.copytree(MODEL, model)
    return model


def windowed_model(folder):
    model = copied_model(folder)
    change_config(model, architectures=["MistralForCausalLM"], model_type="mistral",
                  sliding_window=WINDOW)
    return model


def add_zero_biases(model, config):
    """As Qwen2 has them for q, k and v."""
    weights = model / "model.safetensors"
    data = weights.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, tensors = json.loads(data[8:8 + size]), data[8 + size:]
    for layer in range(config["num_hidden_layers"]):
        for name in "qkv":
            place = f"model.layers.{layer}.self_attn.{name}_proj"
            matrix = header[f"{place}.weight"]
            rows = matrix["shape"][0]
            added = bytes(rows * 2)
            header[f"{place}.bias"] = {"dtype": matrix["dtype"], "shape": [rows],
                                       "data_offsets": [len(tensors), len(tensors) + len(added)]}
            tensors += added
    text = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(text)) + text + tensors)


def model_of_mixed_layers(folder, layer_types):
    model = copied_model(folder)
    config = change_config(model, architectures=["Qwen2ForCausalLM"], model_type="qwen2",
                           attention_bias=True, sliding_window=WINDOW, use_sliding_window=True,
                           layer_types=[f"{kind}_attention" for kind in layer_types])
    add_zero_biases(model, config)
    return model


def answers(cluster, requests):
    return bits(cluster, together=True, requests=requests)


class WindowTest(unittest.TestCase):
    groups = 1  # Of layers, each of which has a block table.
    # Of an answer of 1,800 tokens: ceil(70 / 16) blocks, one that the window begins in, and one
    # ahead; without a window the handoff alone would take 38.
    most_held = 7

    @classmethod
    def make_model(cls, folder):
        return windowed_model(folder)

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = cls.make_model(cls.folder.name)
        with cls.cluster("reference") as cluster:
            cls.reference = [ask(cluster, r)[:2] for r in REQUESTS]
            cls.again = answers(cluster, REQUESTS)  # In one batch, and with every prefix cached.
            cls.short = ask(cluster, SHORT)[:2]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def cluster(cls, name, **options):
        return RunningCluster(BATON, f"window-{name}", **{**shape(), "model": cls.model, **options})

    def assert_quiet(self, cluster, num_blocks):
        self.assertEqual(cluster.await_quiet(num_blocks * self.groups), [])
        audit = cluster.baton("audit", "--interval-s", "0.2", check=False)
        self.assertEqual(audit.returncode, 0, audit.stdout + audit.stderr)

    def test_within_the_window_the_bits_are_those_of_the_model_without_one(self):
        with self.cluster("without", model=MODEL) as cluster:
            self.assertEqual(ask(cluster, SHORT)[:2], self.short)
            beyond = [ask(cluster, r)[:2] for r in REQUESTS]
        # The first answers begin within the window and leave it.
        inside = WINDOW - LENGTHS[0]
        self.assertEqual(beyond[0][1][:inside], self.reference[0][1][:inside])
        self.assertNotEqual(beyond[0][1][-1], self.reference[0][1][-1])
        for one, other in zip(beyond[3:], self.reference[3:]):
            self.assertNotEqual(one[1], other[1], "the window changes nothing")

    def test_batch_and_cached_prefixes_change_no_bit(self):
        self.assertEqual(self.again, self.reference)

    def test_cluster_shape_changes_no_bit(self):
        for options in (shape(2, 2, chunk=16, block=8), shape(1, 2, chunk=2048, block=256, threads=2)):
            with self.subTest(**options), self.cluster("shape", **options) as cluster:
                self.assertEqual(answers(cluster, REQUESTS), self.reference)
                self.assert_quiet(cluster, options["num_blocks"])

    def test_preemption_changes_no_bit(self):
        requests = [dict(r, max_tokens=200) for r in REQUESTS[:5]] * 3
        with self.cluster("roomy") as cluster:
            expected = answers(cluster, requests[:5])
        # 24 blocks hold the longest alone, and three or four windows.
        for preemption in ("recompute", "swap"):
            tight = dict(num_blocks=24, preemption=preemption)
            with self.subTest(preemption), self.cluster("tight", **tight) as cluster:
                urls = [worker["metrics_url"] for worker in cluster.workers()]
                for _ in range(5):  # On a busy machine answers may follow each other.
                    self.assertEqual(answers(cluster, requests), expected * 3)
                    preempted = sum(metric_sum(u, "baton_preemptions_total") for u in urls)
                    if preempted > 0:
                        break
                swapped = sum(metric_sum(u, "baton_swapped_sequences_total") for u in urls)
                self.assertGreater(preempted, 0, "nothing was preempted: the claim was not tried")
                self.assertEqual(swapped > 0, preemption == "swap")
                self.assert_quiet(cluster, 24)

    def test_a_long_answer_holds_the_blocks_of_its_window(self):
        request = dict(prompt=prompt(600), max_tokens=1200, temperature=0, ignore_eos=True)
        total = 256 * self.groups
        with self.cluster("blocks", num_blocks=256) as cluster:
            done = threading.Event()
            held = []

            def watch():
                while not done.is_set():
                    blocks = cluster.workers("decode")[0]["blocks"]
                    if sum(blocks.values()) == total:  # Not before the worker's first status.
                        held.append(total - blocks["free"] - blocks["cached"])

            watcher = threading.Thread(target=watch)
            watcher.start()
            try:
                for _ in range(20):  # A fast machine answers between two reports of a worker.
                    ask(cluster, request)
                    if any(held):
                        break
            finally:
                done.set()
                watcher.join()
            self.assertGreater(max(held), 0, "the answer was not seen: the claim was not tried")
            self.assertLessEqual(max(held), self.most_held)
            self.assert_quiet(cluster, 256)


class AlternatingWindowsTest(WindowTest):
    """As Gemma 2's: every other layer has the window, and block tables of its own."""
    groups = 2
    # ceil(1800 / 16) and one ahead, and of the window, with the 64 tokens that are kept beside it,
    # ceil(134 / 16), one that it begins in, and one ahead.
    most_held = 114 + 11

    @classmethod
    def make_model(cls, folder):
        return model_of_mixed_layers(folder, ["sliding", "full"] * 3)


class FewLayersWithoutAWindowTest(WindowTest):
    """As Gemma 3's: one layer of six has none, and each layer is a group."""
    groups = 6
    most_held = 114 + 5 * 11

    @classmethod
    def make_model(cls, folder):
        return model_of_mixed_layers(folder, ["sliding"] * 5 + ["full"])


if __name__ == "__main__":
    BATON = sys.argv.pop(1)
    unittest.main(verbosity=2)
