#!/usr/bin/env python3
"""The benchmarks for a device by what can be known without one: sums of work, figures that stand
beside rows, limits; torch by a stand-in.

Usage: bench_gpu_test.py BUILD_FOLDER [unittest arguments]
"""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

import serving  # Which makes tests/cluster known.
import torch_rows
from process_cluster import await_true, is_left

BUILD = None


class BenchGpuTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="baton-bench-gpu-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_bench(self, *options):
        done = subprocess.run([BUILD / "tests/gpu_tests", "bench", "--quick", *options], capture_output=True, text=True,
                              timeout=100, check=False,
                              env={**os.environ, "BATON_EMULATED_GPU": "detector=off"})
        return done.returncode, done.stdout, done.stderr

    def rows(self, *options):
        out = self.folder / "rows.jsonl"
        code, _, errors = self.run_bench("--out", out, *options)
        self.assertEqual(code, 0, errors)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual(len({row["name"] for row in rows}), len(rows), "a row twice")
        return {row["name"]: row for row in rows}

    def test_work_of_rows_is_that_of_their_sizes(self):
        rows = self.rows("--groups", "gemm,prefill,decode")
        product = rows["gemm quick qkv 64x64 M=17"]
        self.assertEqual(product["ops"], 2 * 17 * 64 * 64)
        self.assertEqual(product["bytes"], 2 * (64 * 64 + 17 * 64 + 17 * 64))
        summed = rows["gemm quick down 32x256 in 8 segments M=1"]
        self.assertEqual(summed["bytes"], 2 * (32 * 256 + 256) + 4 * 32)
        prefill = rows["attention prefill D=64 heads 4/2 batch 1 context 40 bf16"]
        self.assertEqual(prefill["ops"], 4 * 4 * 64 * 40 * 41 / 2)
        self.assertEqual(prefill["bytes"], 2 * 40 * 2 * 64 * 2 + 2 * 40 * 4 * 64 * 2)
        for name, size in (("bf16", 2), ("fp8_e4m3", 1)):
            decode = rows[f"attention decode D=64 heads 4/2 batch 2 context 40 {name}"]
            self.assertEqual(decode["ops"], 4 * 2 * 40 * 4 * 64)
            self.assertEqual(decode["bytes"], 2 * 2 * 40 * 2 * 64 * size + 2 * 2 * 4 * 64 * 2)

    def test_a_row_stands_beside_the_roof_that_takes_longer(self):
        rows = self.rows("--groups", "gemm,copies")
        copy, peak = (rows[name]["value"] for name in
                      ("copy bandwidth, read and written", "wgmma peak"))
        for name, row in rows.items():
            if not name.startswith(("gemm", "gather 4", "swap")):
                continue
            seconds = {"TFLOP/s": row.get("ops", 0) / peak * 1e-12, "GB/s": row["bytes"] / copy * 1e-9}
            if name.startswith("gemm"):
                self.assertEqual(row["unit"], max(seconds, key=seconds.get), row)
            amount = row["ops"] * 1e-12 if row["unit"] == "TFLOP/s" else row["bytes"] * 1e-9
            self.assertAlmostEqual(row["value"], amount / row["seconds"], delta=1e-6 * row["value"])
        self.assertEqual(rows["swap in 4 blocks of 4 planes"]["roof_name"], "pinned to device")
        self.assertEqual(rows["swap out 4 blocks of 4 planes"]["roof_name"], "device to pinned")

    def test_a_load_stands_beside_copies_from_pinned_memory_and_its_parts_on_the_host(self):
        rows = self.rows("--groups", "load")
        loads = {name: row for name, row in rows.items() if name.startswith("load quick ")}
        for name, row in loads.items():
            self.assertGreater(row["value"], 0, name)
            self.assertAlmostEqual(row["value"], 1e-9 * row["bytes"] / row["seconds"])
        for what in ("hash of weights, 1", "rows in host memory, 1", "to the GPU, ",
                     "to the GPU with its hash, "):
            self.assertTrue([name for name in loads if name.startswith(f"load quick {what}")], what)
        for name, row in loads.items():
            if "to the GPU" in name:
                self.assertEqual(row["roof_name"], "pinned to device")
        code, told, _ = self.run_bench("--host-load", "quick")
        self.assertEqual(code, 0)
        self.assertIn("load quick rows in host memory, 1 threads", told)

    def computed(self, cards):
        path = self.folder / "gpu_model.json"
        path.write_text(json.dumps(cards))
        return path

    def test_the_best_kernel_of_a_family_says_what_was_computed(self):
        kernels = [{"kernel": "GEMM a", "flops": [1e6, 4e6], "bytes": [1e30, 1e30]},
                   {"kernel": "GEMM b", "flops": [2e6, 3e6], "bytes": [1e30, 1e30]},
                   {"kernel": "segments a", "flops": [5e6, 7e6], "bytes": [1e30, 1e30]},
                   {"kernel": "prefill D 64", "flops": [1e30, 1e30], "bytes": [9e9, 9e9]},
                   {"kernel": "decode D 64", "flops": [1e30, 1e30], "bytes": [1e3, 2e3]},
                   {"kernel": "decode D 64x", "flops": [1e30, 1e30], "bytes": [1.0, 1.0]},
                   {"kernel": "decode fp8 D 64", "flops": [1e30, 1e30], "bytes": [1e3, 3e3]},
                   {"kernel": "gather", "bytes": [5e9, 5e9]},
                   {"kernel": "pinned", "bytes": [6e9, 7e9]}]
        path = self.computed({"emulated sm_90": kernels, "H100": [{"kernel": "GEMM c",
                                                                   "flops": [9e9, 9e9]}]})
        rows = self.rows("--groups", "gemm,decode,copies", "--computed", path)
        for name, reach in (("gemm quick qkv 64x64 M=17", (2e6, 4e6)),
                            ("gemm quick down 32x256 in 8 segments M=17", (5e6, 7e6))):
            product = rows[name]
            scale = 1 if product["unit"] == "TFLOP/s" else 1e3 * product["bytes"] / product["ops"]
            for got, flops in zip(product["computed"], reach):
                self.assertAlmostEqual(got, flops * 1e-12 * scale, delta=1e-6 * got)
        for kv, times in (("bf16", 2), ("fp8_e4m3", 3)):
            decode = rows[f"attention decode D=64 heads 4/2 batch 2 context 40 {kv}"]
            self.assertAlmostEqual(decode["computed"][1] / decode["computed"][0], times)
        self.assertEqual(rows["gather 4 blocks of 4 planes"]["computed"], [5, 5])
        for name in ("gather + pinned", "swap in"):
            self.assertEqual(rows[f"{name} 4 blocks of 4 planes"]["computed"], [6, 7])
        self.assertNotIn("computed", rows["copy_pieces 4 x 4096 bytes"])

    def test_figures_of_another_card_stand_beside_nothing(self):
        path = self.computed({"H100": [{"kernel": "GEMM c", "flops": [9e9, 9e9]}]})
        rows = self.rows("--groups", "gemm", "--computed", path)
        self.assertFalse([row for row in rows.values() if "computed" in row])

    def test_a_file_of_figures_that_is_none_is_named_with_its_cure(self):
        for text in ("", "{", '{"emulated": [{"flops": [1, 2]}]}', '{"emulated": [{"kernel": "G", '
                     '"bytes": [1]}]}'):
            path = self.folder / "bad.json"
            path.write_text(text)
            code, _, errors = self.run_bench("--groups", "none", "--computed", path)
            self.assertEqual(code, 1, text)
            self.assertIn(f"--computed {path}", errors)
            self.assertIn("gpu_model.py --json", errors)

    def test_no_row_is_begun_when_the_time_is_over(self):
        code, told, _ = self.run_bench("--groups", "gemm,prefill", "--seconds", "1e-9")
        self.assertEqual(code, 0)
        self.assertEqual(told.splitlines()[-1], "5 rows, 5 left out")
        self.assertIn("gemm quick qkv 64x64 M=1: left out: the 1e-09 s of --seconds", told)


class ServingTest(unittest.TestCase):
    LLAMA_8B = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}

    def test_a_step_reads_all_matrices_but_the_embedding_and_the_keys(self):
        weights = serving.bytes_of_step(self.LLAMA_8B, 0, 0)
        self.assertEqual(weights, 2 * (8030261248 - 128256 * 4096 - 65 * 4096))  # Without norms.
        kv = serving.bytes_of_step(self.LLAMA_8B, 3, 1000) - weights
        self.assertEqual(kv, 3 * 1000 * 128 << 10)  # 128 KiB a token.

    def test_what_is_stopped_leaves_no_cluster_behind(self):
        with tempfile.TemporaryDirectory() as scratch:
            out = pathlib.Path(scratch) / "rows.jsonl"
            with subprocess.Popen(
                    [sys.executable, "-B", serving.__file__, BUILD, "--quick", "--out", out],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    env={**os.environ, "BATON_EMULATED_GPU": "detector=off",
                         "TMPDIR": scratch}) as running:
                # Amid the second load.
                await_true(lambda: out.exists() and out.read_text(), 60, "a load has ended")
                running.terminate()
                self.assertEqual(running.wait(60), 143)
            self.assertEqual(list(pathlib.Path(scratch).iterdir()), [out])  # Not the model.
        await_true(lambda: is_left(BUILD / "run/serving-quick"), 60, "all have ended")

    def check_room(self, name, free):
        with tempfile.TemporaryDirectory() as folder:
            pack = pathlib.Path(folder)
            (pack / "bin").mkdir()
            told = json.dumps({"gpus": [{"index": 0, "memory_free": free}]})
            program = pack / "bin/baton-prefill"
            program.write_text(f"#!/bin/sh\necho '{told}'\n")
            program.chmod(0o755)
            told = io.StringIO()
            with contextlib.redirect_stdout(told):
                try:
                    serving.check_room(pack, name, pack)
                except SystemExit as end:
                    return end.code, told.getvalue()
            return 0, ""

    def test_a_gpu_without_room_for_two_workers_is_skipped_by_size(self):
        code, told = self.check_room("8B", 40 << 30)
        self.assertEqual(code, serving.SKIPPED)
        self.assertIn("two workers need 42 GiB of GPU memory, 40 are free", told)
        self.assertEqual(self.check_room("1B", 15 << 30)[0], 0)
        self.assertEqual(self.check_room("1B", 13 << 30)[0], serving.SKIPPED)
        self.assertEqual(self.check_room("quick", 0)[0], 0)


class FakeTorch:
    """Counts what it is asked for; refuses FlashAttention, and has each call take a millisecond."""

    def __init__(self, has_gpu=True):
        self.__version__, self.bfloat16 = "9.9", "bf16"
        self.asked, self.captured = [], 0
        nothing = lambda *_: contextlib.nullcontext()  # noqa: E731
        event = types.SimpleNamespace(record=lambda: None,
                                      elapsed_time=lambda _: self.captured * 1.0)
        self.cuda = types.SimpleNamespace(
            is_available=lambda: has_gpu, Stream=object, stream=nothing, synchronize=lambda: None,
            CUDAGraph=lambda: types.SimpleNamespace(replay=lambda: None), graph=self.graph,
            Event=lambda **_: event, empty_cache=lambda: None, get_device_name=lambda: "a GPU")
        self.nn = types.SimpleNamespace(
            functional=types.SimpleNamespace(scaled_dot_product_attention=self.attend))
        self.backend = None

    @contextlib.contextmanager
    def graph(self, _):
        before = len(self.asked)
        yield
        self.captured = len(self.asked) - before

    def randn(self, *shape, **_):
        return types.SimpleNamespace(shape=shape, t=lambda: types.SimpleNamespace(shape=shape[::-1]))

    def matmul(self, a, b):
        self.asked.append((a.shape, b.shape))

    def attend(self, q, k, v, is_causal, enable_gqa):
        if self.backend == "flash":
            raise RuntimeError("no such kernel\nfor this")
        assert k.shape == v.shape and is_causal == (q.shape[2] > 1) and enable_gqa
        self.asked.append((q.shape, k.shape))

    @contextlib.contextmanager
    def use(self, backend):
        self.backend = backend
        yield

    def modules(self):
        attention = types.ModuleType("torch.nn.attention")
        attention.SDPBackend = types.SimpleNamespace(CUDNN_ATTENTION="cudnn",
                                                     FLASH_ATTENTION="flash")
        attention.sdpa_kernel = self.use
        return {"torch": self, "torch.nn": types.ModuleType("torch.nn"),
                "torch.nn.attention": attention}


class TorchRowsTest(unittest.TestCase):
    def run_with(self, torch, *arguments):
        told = io.StringIO()
        with unittest.mock.patch.dict(sys.modules, torch.modules() if torch else {"torch": None}), \
                unittest.mock.patch.object(sys, "argv", ["torch_rows.py", *arguments]), \
                contextlib.redirect_stdout(told):
            try:
                code = torch_rows.main()
            except SystemExit as end:
                code = end.code
        return code, told.getvalue()

    def test_without_torch_or_its_gpu_the_reason_is_said(self):
        code, told = self.run_with(None)
        self.assertEqual(code, torch_rows.SKIPPED)
        self.assertIn("no torch here", told)
        code, told = self.run_with(FakeTorch(has_gpu=False))
        self.assertEqual((code, told), (torch_rows.SKIPPED, "torch 9.9 sees no GPU\n"))

    def test_every_size_is_measured_and_what_a_library_lacks_is_left_out(self):
        with tempfile.NamedTemporaryFile() as out:
            code, told = self.run_with(FakeTorch(), "--out", out.name)
            rows = [json.loads(line) for line in out.read().splitlines()]
        attention = len(torch_rows.PREFILL) + len(torch_rows.DECODE)
        gemm = len(torch_rows.SHAPES) * len(torch_rows.ROWS)
        self.assertEqual((code, len(rows)), (0, gemm + attention))
        self.assertIn(f"{gemm + attention} rows, {attention} left out", told)
        self.assertIn("left out: no such kernel\n", told)
        for row in rows:
            self.assertAlmostEqual(row["seconds"], 1e-3)  # Of each call, however many a graph has.
        by_name = {row["name"]: row for row in rows}
        product = by_name["torch gemm 8B down 4096x14336 M=128"]
        self.assertEqual(product["ops"], 2 * 128 * 4096 * 14336)

    def test_an_old_torch_has_products_alone(self):
        torch = FakeTorch()
        modules = torch.modules()
        modules["torch.nn.attention"] = None
        torch.modules = lambda: modules
        code, told = self.run_with(torch)
        self.assertEqual(code, 0)
        self.assertIn("lets nobody choose its attention", told)
        gemm = len(torch_rows.SHAPES) * len(torch_rows.ROWS)
        self.assertIn(f"{gemm} rows, 0 left out", told)

    def test_no_size_is_begun_when_the_time_is_over(self):
        code, told = self.run_with(FakeTorch(), "--seconds", "-1")
        self.assertEqual(code, 0)
        self.assertIn("\n0 rows, ", "\n" + told.splitlines()[-1])


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
