#!/usr/bin/env python3
"""Each benchmark's quick form runs and says all that it promises. Speeds are not judged.

Usage: bench_test.py BUILD_FOLDER [unittest arguments]
"""
import http.server
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest

import in_turn
import llama_cpp
import report
from running_server import PeerError, check_same_model
from streams import Load, Seen

BUILD = None
HERE = pathlib.Path(__file__).resolve().parent
FIGURES = ("TTFT p50", "inter-token p50", "inter-token p99", "inter-token p99 : p50", "request p50",
           "output")


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
        self.assert_rows(rows, ["125M load, start to ready", "125M peak memory",
                                "125M prefill 512", "125M prefill 4096",
                                *(f"125M decode batch {batch} context {context}"
                                  for batch, context in ((1, 512), (8, 128), (8, 512), (32, 128),
                                                         (32, 512))),
                                *(f"125M sampling 64 x 152k, {way}"
                                  for way in ("greedy", "temperature 0.8", "top-p 0.95",
                                              "top-k 50, top-p 0.95", "top-k 20000", "min-p 0.05",
                                              "top-p 0.95, penalties", "greedy, logprobs 20",
                                              "top-p 0.95, logprobs 20"))])

    def test_sums_in_one_part_cannot_be_divided_among_ranks(self):
        done = subprocess.run([self.program("engine_in_one_part"), "--tp", "2", "--quick", "--models",
                               self.models], text=True, capture_output=True, timeout=600, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("are no 2 parts of a multiple of 32", done.stderr)

    def test_streams_measure_the_engine_alone(self):
        rows = self.rows("streams", self.program("streams"), "--models", self.models,
                         "--streams", 2)
        self.assert_rows(rows, [f"125M 2 streams {figure}" for figure in FIGURES], with_roof=False)

    def test_kv_groups_counts_what_windows_save(self):
        rows = self.rows("kv_groups", self.program("kv_groups"))
        # Half of Gemma 2's layers keep 4,096 + 64 tokens of 8,192; within the window nothing is less.
        half = rows["Gemma 2 9B, 8192 tokens, held"]
        self.assertAlmostEqual(half["share"], (1 + 4160 / 8192) / 2, delta=0.002)
        self.assertEqual(rows["Gemma 2 9B, 2048 tokens, held"]["share"], 1)
        self.assertLess(rows["Gemma 3 27B, 131072 tokens, held"]["share"], 0.18)
        for name, row in rows.items():
            self.assertLessEqual(row["share"], 8 / 7, name)

    def test_choices_counts_what_they_share(self):
        rows = self.rows("choices", self.program("choices"))
        for what in ("blocks at the peak", "handed over"):
            self.assertLessEqual(rows[f"prompt of 2000, n = 8, {what}"]["share"], 1.15)
            self.assertEqual(rows[f"prompt of 2000, n = 8, 8 handoffs, {what}"]["share"], 8)

    def test_kv_transfer_measures_both_sides_in_plaintext_and_under_tls(self):
        rows = self.rows("kv_transfer", self.program("kv_transfer"))
        for mode in ("plaintext", "TLS"):
            for figure in ("sender", "receiver", "throughput"):
                self.assertGreater(rows[f"{mode}, {figure}"]["value"], 0)
        self.assert_rows(rows, ["TLS, throughput"])

    def test_cluster_measures_latency_output_handoff_start_and_memory(self):
        rows = self.rows("cluster", sys.executable, "-B", HERE / "cluster.py", "--build", BUILD,
                         "--models", self.models)
        self.assert_rows(rows, ["125M start to a token from end to end"], with_roof=False)
        self.assert_rows(rows, [f"125M {load} {figure}" for load in ("1 stream", "8 streams")
                                for figure in (*FIGURES, "handoff, first byte to verified",
                                               "handoff, wait that a client sees")])
        self.assert_rows(rows, ["125M prefill-0 peak memory", "125M decode-0 peak memory"])

    def test_router_answers_all_that_it_is_measured_by(self):
        rows = self.rows("router", sys.executable, "-B", HERE / "router" / "router_bench.py",
                         "--build", BUILD)
        value = {name: row["value"] for name, row in rows.items()}
        for workload in ("A 50/s", "C words:", "C a third unknown:", "C known prefix:", "C streams:",
                         "C at once:", "D"):
            self.assertEqual(value[f"{workload} answered"], 100)
        self.assertEqual(value["A 50/s events of an answer"], 16)
        self.assertGreater(value["C words: tokens of a prompt"], 50_000)
        self.assertEqual(value["overload, then half the load: answered"], 100)
        for name in ("A 50/s CPU per 1,000 answers", "A 50/s TTFT p99", "B most requests a second",
                     "C words: CPU per 100,000 prompt tokens", "D CPU per 1,000,000 relayed tokens",
                     "C streams alone: time between tokens p99",
                     "overload 5x goodput, of the peak", "refusals: CPU of each",
                     "fairness: beside a flood, of alone", "memory, growth of the second half"):
            self.assertIn(name, rows)
        flipped = "E 20 streams, one flipped bit"
        self.assertEqual(value[f"{flipped}: answered"], 100)
        self.assertEqual(value[f"{flipped}: events of an answer"], 60)
        self.assertEqual(value[f"{flipped}: returns"], 20)
        self.assertEqual(value[f"{flipped}: moves"] + value[f"{flipped}: retries"], 0)
        self.assertEqual(value["memory, not answered"], 0)
        self.assertEqual(value["refusals: refused"], 100)
        self.assertEqual(value["fairness: answered"], 100)

    def test_router_over_tls_is_measured_beside_one_in_plaintext(self):
        rows = self.rows("router", sys.executable, "-B", HERE / "router" / "router_bench.py",
                         "--tls", "--build", BUILD)
        for name in ("A 50/s CPU per 1,000 answers", "D CPU per 1,000,000 relayed tokens"):
            for side in ("plaintext", "TLS", "TLS, of plaintext"):
                self.assertIn(f"{name} {side}", rows)
        self.assertIn("A 50/s TTFT p50 TLS", rows)
        self.assertEqual([rows[f"{workload} answered"]["value"] for workload in ("A 50/s", "D")],
                         [100, 100])

    def test_router_workloads_that_are_not_there_are_refused(self):
        done = subprocess.run([sys.executable, "-B", HERE / "router" / "router_bench.py", "--only",
                               "A,F"], text=True, capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--only F", done.stderr)

    def test_peers_measure_all_systems_and_their_ratios(self):
        if missing := llama_cpp.missing():
            self.skipTest(missing)
        self.rows("streams", self.program("streams"), "--models", self.models)  # Makes the model.
        path = llama_cpp.make_model(self.models / "125M")
        with llama_cpp.Server(path, 2) as server:
            rows = self.rows("peers", sys.executable, "-B", HERE / "peers.py", "--build", BUILD,
                             "--models", self.models, "--beside", f"other={server.url}")
        engine = ["125M prefill 512", "125M decode batch 1 context 512"]
        serving = [f"125M {load} {figure}" for load in ("1 stream", "8 streams")
                   for figure in FIGURES]
        for side in ("Baton", "llama.cpp", "Baton : llama.cpp"):
            self.assertLessEqual({f"{name}, {side}" for name in engine + serving}, set(rows))
        for side in ("other", "Baton : other"):
            self.assertLessEqual({f"{name}, {side}" for name in serving}, set(rows))
        self.assertIn("met", rows["125M 8 streams inter-token p99 : p50, Baton"])
        self.assertIn("met", rows["125M 8 streams output, Baton : other"])

    def test_a_model_folder_that_cannot_be_made_is_an_error_with_its_name(self):
        blocked = pathlib.Path(self.folder.name) / "file"
        blocked.write_text("")
        done = subprocess.run([self.program("streams"), "--quick", "--models", blocked / "models"],
                              text=True, capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(str(blocked), done.stderr)


class OneModel(http.server.BaseHTTPRequestHandler):
    """Says that it serves a model, and answers nothing else."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "one"}]}')

    def log_message(self, *_):
        pass


class NoServer(OneModel):
    """Knows no such page."""

    def do_GET(self):
        self.send_error(404)


class Answering:
    """A server's client without a server: each first token is this word."""
    url, model = "http://stand-in", "one"

    def __init__(self, word):
        self.word = word

    def post(self, *_, **__):
        return {"choices": [{"text": self.word}]}


class InTurnTest(unittest.TestCase):
    def test_a_ratio_stands_beside_that_of_the_first_to_itself(self):
        rounds = [({"a": 10}, {"a": 11}, {"a": 12}), ({"a": 20}, {"a": 18}, {"a": 16}),
                  ({"a": 10}, {"a": 8}, {"a": 10})]
        beside, beside_spread, itself, itself_spread = in_turn.ratio_rows(rounds)["a"]
        self.assertAlmostEqual(beside, 1)
        self.assertAlmostEqual(beside_spread, 0.2)
        self.assertAlmostEqual(itself, 1)
        self.assertAlmostEqual(itself_spread, 0.4)
        many = [({"a": 10}, {"a": 10}, {"a": 10 + i}) for i in (0, 0, 0, 0, 0, 0, 90)]
        self.assertEqual(in_turn.ratio_rows(many)["a"][3], 0)

    def test_ranks_and_another_program_are_measured_beside_this_one(self):
        with tempfile.TemporaryDirectory(prefix="baton-bench-test-") as folder:
            for which in (("--tp", "2"), ("--before", str(BUILD / "bench" / "bench_engine"))):
                done = subprocess.run(
                    [sys.executable, "-B", HERE / "in_turn.py", "--build", BUILD, *which, "--quick",
                     "--models", folder, "--work", "decode batch 8", "--rounds", "1", "--json"],
                    text=True, stdout=subprocess.PIPE, timeout=600, check=False)
                self.assertEqual(done.returncode, 0, which)
                rows = {row["name"]: row["value"] for row in json.loads(done.stdout)["rows"]}
                for context in (128, 512):
                    for what in ("second : first", "first : itself"):
                        self.assertGreater(
                            rows[f"125M decode batch 8 context {context}, {what}"], 0)

    def test_a_program_that_is_not_there_is_named(self):
        done = subprocess.run([sys.executable, "-B", HERE / "in_turn.py", "--build", BUILD,
                               "--before", "/nonexistent/bench_engine"], text=True,
                              capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("/nonexistent/bench_engine is missing", done.stderr.splitlines()[-1])


class PeersTest(unittest.TestCase):
    def assert_refused(self, *arguments, says, **environment):
        done = subprocess.run(
            [sys.executable, "-B", HERE / "peers.py", "--build", BUILD, "--quick", *arguments],
            text=True, timeout=60, check=False, capture_output=True,
            env={**os.environ, **environment})
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        for words in says:
            self.assertIn(words, done.stderr.splitlines()[-1])
        self.assertNotIn("Traceback", done.stderr)

    def test_what_is_missing_is_named_in_one_line(self):
        with tempfile.TemporaryDirectory() as empty:
            self.assert_refused(says=("--install", empty), BATON_BENCH_CACHE=empty)

    def test_a_server_that_cannot_be_reached_is_named(self):
        with http.server.HTTPServer(("127.0.0.1", 0), OneModel) as server:
            url = f"http://127.0.0.1:{server.server_port}"
        self.assert_refused("--beside", f"vLLM={url}", says=("vLLM", url, "refused"))

    def test_a_server_that_is_no_openai_server_is_named(self):
        with http.server.HTTPServer(("127.0.0.1", 0), NoServer) as server:
            threading.Thread(target=server.handle_request).start()
            url = f"http://127.0.0.1:{server.server_port}"
            self.assert_refused("--beside", f"vLLM={url}/v1/", says=("vLLM", url, "404"))

    def test_the_model_is_the_servers_own(self):
        with http.server.HTTPServer(("127.0.0.1", 0), OneModel) as server, \
                tempfile.TemporaryDirectory() as empty:
            threading.Thread(target=server.handle_request).start()
            # It got past the server, to the next thing that is missing.
            self.assert_refused("--beside", f"vLLM=http://127.0.0.1:{server.server_port}",
                                says=("--install",), BATON_BENCH_CACHE=empty)

    def test_options_without_sense_are_refused(self):
        for options, says in ((("--beside", "http://localhost:1"), "NAME=http://HOST:PORT"),
                              (("--beside", "a=https://localhost:1"), "NAME=http://HOST:PORT"),
                              (("--beside", "Baton=http://localhost:1"), "name of its own"),
                              (("--beside", "a=http://localhost:1", "--only", "engine"), "serving"),
                              (("--only", "cluster"), "engine"),
                              (("--repeats", "0"), "at least 1")):
            with self.subTest(options):
                self.assert_refused(*options, says=(says,))

    def test_another_model_is_told_by_its_first_tokens(self):
        check_same_model("peer", Answering("a"), ["b", "a", "b", "b"])
        with self.assertRaisesRegex(PeerError, "peer at http://stand-in: its model one is another"):
            check_same_model("peer", Answering("a"), ["b", "c", "d", "e"])

    def test_figures_are_those_of_the_times(self):
        times = [[1.0 + 0.01 * i for i in range(100)] + [2.99]] * 2
        figures = Seen(times, seconds=4).figures(Load(2, 1, 8, 101))
        for what, value in (("TTFT p50", 1000), ("inter-token p50", 10), ("inter-token p99", 10),
                            ("inter-token p99 : p50", 1), ("request p50", 2990),
                            ("output", 202 / 4)):
            self.assertAlmostEqual(figures[what][0], value, msg=what)
        slow = Seen([[0, 0.01, 0.02, 0.1]], seconds=1).figures(Load(1, 1, 8, 4))
        self.assertAlmostEqual(slow["inter-token p99 : p50"][0], 8)

    def test_a_goal_judges_the_share_of_a_limit_or_else_the_value(self):
        for entry, sign, limit, met in ((report.row("a", 90, "x", 100, "roof"), ">=", 0.9, True),
                                        (report.row("a", 90, "x", 100, "roof"), ">", 0.9, False),
                                        (report.row("a", 4, "x"), "<=", 4, True),
                                        (report.row("a", 4, "x"), "<", 4, False)):
            self.assertEqual(report.with_goal(entry, sign, limit)["met"], met)


if __name__ == "__main__":
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
