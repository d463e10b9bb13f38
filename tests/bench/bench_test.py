#!/usr/bin/env python3
"""Each benchmark's quick form runs and says all that it promises. Speeds are not judged.

Usage: bench_test.py BUILD_FOLDER [unittest arguments]
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest

import peers

BUILD = None
HERE = pathlib.Path(__file__).resolve().parent
FIGURES = ("TTFT p50", "inter-token p50", "inter-token p99", "output")


class BenchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="baton-bench-test-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.models = pathlib.Path(cls.folder.name) / "models"

    def rows(self, bench, *command):
        """The rows of one JSON document by name; each number is one, each share follows."""
        done = subprocess.run([*map(str, command), "--quick", "--json"], text=True, timeout=600,
                              stdout=subprocess.PIPE, check=False)
        self.assertEqual(done.returncode, 0, bench)
        report = json.loads(done.stdout)
        self.assertEqual(report["bench"], bench)
        for row in report["rows"]:
            self.assertTrue(math.isfinite(row["value"]) and row["value"] >= 0, row)
            self.assertTrue(row["unit"], row)
            if "roof" in row:
                self.assertGreater(row["roof"], 0, row)
                self.assertTrue(row["roof_name"], row)
                self.assertAlmostEqual(row["share"], row["value"] / row["roof"], places=6)
        names = [row["name"] for row in report["rows"]]
        self.assertEqual(len(set(names)), len(names), "a row twice")
        return {row["name"]: row for row in report["rows"]}

    def program(self, name):
        return BUILD / "bench" / f"bench_{name}"

    def assert_rows(self, rows, names, with_roof=True):
        for name in names:
            self.assertIn(name, rows)
            self.assertEqual("roof" in rows[name], with_roof, rows[name])

    def test_roofs_measure_bandwidth_and_a_product_peak_of_one_and_two_threads(self):
        rows = self.rows("roofs", self.program("roofs"), "--threads", 2)
        for threads in (1, 2):
            self.assertIn(f"read bandwidth, {threads} threads", rows)
            self.assertIn(f"fma f32, AVX2, {threads} threads", rows)

    def test_ops_measure_products_attention_and_the_cache_beside_roofs(self):
        rows = self.rows("ops", self.program("ops"))
        self.assert_rows(rows, [f"gemm 125M {shape} M={m}"
                                for shape in ("qkv 2304x768", "gate_up 6144x768", "down 768x3072")
                                for m in (1, 2, 4, 8, 16, 32, 64, 128, 512)])
        self.assert_rows(rows, [f"attention {phase} D={shape} batch {batch} length 512"
                                for phase, batch in (("prefill", 1), ("decode", 8))
                                for shape in ("64 heads 8/2", "128 heads 8/8")])
        for op in ("swap_blocks", "copy_blocks", "gather_blocks", "scatter_blocks",
                   "reshape_and_cache"):
            self.assertTrue([row for name, row in rows.items()
                             if name.startswith(f"cache {op}") and "roof" in row], op)

    def test_engine_measures_loading_memory_prefill_and_decode(self):
        rows = self.rows("engine", self.program("engine"), "--models", self.models)
        self.assert_rows(rows, ["125M load, start to ready"], with_roof=False)
        self.assert_rows(rows, ["125M peak memory", "125M prefill 512", "125M prefill 4096",
                                *(f"125M decode batch {batch} context {context}"
                                  for batch, context in ((1, 512), (8, 128), (8, 512), (32, 128),
                                                         (32, 512)))])

    def test_streams_measure_the_engine_alone(self):
        rows = self.rows("streams", self.program("streams"), "--models", self.models,
                         "--streams", 2)
        self.assert_rows(rows, [f"125M 2 streams {figure}" for figure in FIGURES], with_roof=False)

    def test_cluster_measures_latency_output_handoff_start_and_memory(self):
        rows = self.rows("cluster", sys.executable, "-B", HERE / "cluster.py", "--build", BUILD,
                         "--models", self.models)
        self.assert_rows(rows, ["125M start to a token from end to end"], with_roof=False)
        self.assert_rows(rows, [f"125M {load} {figure}" for load in ("1 stream", "8 streams")
                                for figure in (*FIGURES, "handoff, first byte to verified",
                                               "handoff, wait that a client sees")])
        self.assert_rows(rows, ["125M prefill-0 peak memory", "125M decode-0 peak memory"])

    def test_peers_measure_both_sides_and_their_ratio(self):
        if missing := peers.missing():
            self.skipTest(missing)
        rows = self.rows("peers", sys.executable, "-B", HERE / "peers.py", "--build", BUILD,
                         "--models", self.models)
        names = ["125M prefill 512", "125M decode batch 1 context 512",
                 *(f"125M {load} {figure}" for load in ("1 stream", "8 streams")
                   for figure in FIGURES)]
        for side in ("Baton", "llama.cpp", "Baton : llama.cpp"):
            self.assertLessEqual({f"{name}, {side}" for name in names}, set(rows))

    def test_a_model_folder_that_cannot_be_made_is_an_error_with_its_name(self):
        blocked = pathlib.Path(self.folder.name) / "file"
        blocked.write_text("")
        done = subprocess.run([self.program("streams"), "--quick", "--models", blocked / "models"],
                              text=True, capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(str(blocked), done.stderr)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
