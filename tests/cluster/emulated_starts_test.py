#!/usr/bin/env python3
"""Starts on emulated GPUs that cannot go well: one line says why and what to change, and nothing is
left half started.

Usage: emulated_starts_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from emulated_test import REQUESTS, ask
from process_cluster import await_true, processes_of
from running_cluster import MODEL, RunningCluster

BIN = None
LIMIT_S = 240
FAST = "detector=off"  # Unlike other clusters with the forms of sm_90a.
OPENED = 12  # Kernels that compare the forms of sm_90a, before any of the load.
# In which kernel of its load: amid the weights, amid the passes before graphs.
HANGS = {"decode": OPENED + 5, "prefill": OPENED + 150}


def start(role, *options, emulated=FAST):
    """A worker on its own."""
    return subprocess.Popen([BIN / f"baton-{role}", "--model", MODEL, "--port", "0", *options],
                            env={**os.environ, "BATON_EMULATED_GPU": emulated},
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(worker):
    """Its exit code and what it said last."""
    _, errors = worker.communicate(timeout=LIMIT_S)
    return worker.returncode, errors.strip().splitlines()[-1]


class EmulatedStartsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # They take as long as a device is waited for, most of it beside the other tests.
        cls.hanging = {role: start(role, "--device", "cuda", "--threads", "1",
                                   emulated=f"{FAST} hang={kernel}")
                       for role, kernel in HANGS.items()}

    @classmethod
    def tearDownClass(cls):
        for worker in cls.hanging.values():
            worker.kill()
            worker.communicate()

    def test_what_cannot_start_says_why_in_one_line(self):
        for emulated, options, says in (
                ("devices=0", ["--device", "cuda"], "shows no GPU"),
                ("driver=0", ["--device", "cuda"], "no NVIDIA driver"),
                ("driver=12020", ["--device", "cuda"], "12.2"),
                ("arch=sm75", ["--device", "cuda"], "sm_75, and sm_80 is needed"),
                (FAST, ["--device", "cuda:3"], "cuda:3"),
                (FAST, ["--device", "cuda", "--tp", "2"],
                 "tp = 2: each rank takes a GPU of its own, from cuda:0 on, and there is 1"),
                ("devices=2 peers=off", ["--device", "cuda", "--tp", "2"],
                 "cuda:0 cannot reach the memory of cuda:1"),
                ("devices=2 arch=sm90,sm80", ["--device", "cuda", "--tp", "2"],
                 "rank 0 computes as cuda-emulated-sm90.1, rank 1 as cuda-emulated-sm80.1"),
                (FAST, ["--device", "gpu"], "--device gpu: must be"),
                (FAST, ["--device", "cuda", "--compute-dtype", "f32"], "compute_dtype = f32"),
                (FAST, ["--device", "cuda", "--kv-dtype", "f32"], "kv_dtype = f32"),
                ("memory=47000000", ["--device", "cuda"], "--chunk-tokens"),
                ("memory=60000000", ["--device", "cuda"], "--gpu-memory-fraction"),
                ("memory=1000000", ["--device", "cuda"], "GPU memory"),
                ("taken=900000000", ["--device", "cuda"],
                 "MiB are free, as other programs use this GPU")):
            with self.subTest(says):
                code, line = end(start("decode", *options, emulated=emulated))
                self.assertEqual(code, 2, line)
                self.assertIn(says, line)

    def refused(self, *options, emulated):
        """The one line of a cluster that does not start."""
        folder = BIN.parent / "run/emulated-refused"
        done = subprocess.run(
            [BIN / "baton", "up", "--detach", "--dir", folder, "--model", MODEL, "--http", "0",
             "--grpc", "0", "--threads", "1", "--gpu-graphs", "off", *options],
            env={**os.environ, "BATON_EMULATED_GPU": emulated}, capture_output=True, text=True,
            timeout=LIMIT_S)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertFalse((folder / "state.json").exists())
        await_true(lambda: not processes_of(folder), LIMIT_S, lambda: f"{processes_of(folder)} end")
        return done.stderr

    def test_a_cluster_that_cannot_start_says_why_in_one_line_and_leaves_nothing(self):
        for emulated, device, says in (
                (FAST, "cuda:3", "cuda:3"), ("driver=0", "cuda", "no NVIDIA driver"),
                (f"{FAST} taken=900000000", "cuda",
                 "other programs use this GPU.* of --gpu-memory-fraction 0.9")):
            with self.subTest(says):
                line = self.refused("--device", device, emulated=emulated)
                self.assertRegex(line, f"^baton up: (prefill|decode)-0: .*{says}.*see .*-0.log$")

    def test_a_gpu_has_room_for_one_worker_or_one_cluster_and_the_next_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            emulated = f"{FAST} memory=256000000 shared={pathlib.Path(folder) / 'use'}"
            # 117 MiB of K/V each.
            line = self.refused("--device", "cuda", "--num-blocks", "5000", emulated=emulated)
            self.assertRegex(line, "^baton up: (prefill|decode)-0: .* bytes of GPU memory, of "
                                   "which .* are free.*, for 5000 KV blocks; lower --num-blocks")
            os.environ["BATON_EMULATED_GPU"] = emulated
            self.addCleanup(os.environ.pop, "BATON_EMULATED_GPU", None)
            with RunningCluster(BIN / "baton", "emulated-shared", device="cuda", threads=1,
                                gpu_graphs="off", gpu_memory_fraction=0.6) as cluster:
                known = ask(cluster, REQUESTS[0])
                line = self.refused("--device", "cuda", emulated=emulated)
                # At its weights, its workspace or its K/V, by how far the other worker has come.
                self.assertRegex(line, "other programs use this GPU; stop them, lower the fraction|"
                                       "are held by other programs or CUDA itself, see nvidia-smi|"
                                       "see nvidia-smi for who holds it")
                self.assertEqual(ask(cluster, REQUESTS[0]), known)
            # What was the cluster's is free again.
            with RunningCluster(BIN / "baton", "emulated-shared", device="cuda", threads=1,
                                gpu_graphs="off", gpu_memory_fraction=0.6) as cluster:
                self.assertEqual(ask(cluster, REQUESTS[0]), known)

    def test_worker_whose_gpu_is_lost_while_it_loads_ends_as_in_a_step(self):
        code, line = end(start("prefill", "--device", "cuda", emulated=f"{FAST} lose={OPENED + 3}"))
        self.assertEqual(code, 70, line)
        self.assertRegex(line, "^baton-prefill: --device cuda: the GPU is lost: .*"
                               "nvidia-smi --gpu-reset, or take another by --device cuda:N$")

    def test_worker_whose_gpu_adds_otherwise_by_wgmma_says_that_it_computes_without(self):
        # With an end that comes by itself.
        worker = start("prefill", "--device", "cuda",
                       emulated=f"{FAST} wgmma=halves lose={OPENED + 3}")
        _, errors = worker.communicate(timeout=LIMIT_S)
        lines = [line for line in errors.splitlines() if "wgmma" in line]
        self.assertEqual(len(lines), 1, errors)
        self.assertIn("the slower kernels of sm_80 give the right bits", lines[0])
        self.assertIn('device="emulated sm_90"', lines[0])
        self.assertIn("f16 attention", lines[0])

    def test_workers_whose_gpu_hangs_while_they_load_end_after_the_limit(self):
        for role, worker in self.hanging.items():
            code, line = end(worker)
            self.assertEqual(code, 70, line)
            self.assertTrue(re.match(
                f"baton-{role}: --device cuda: emulated sm_90 has not ended its work within 30000 "
                "ms, while the model was loading; see dmesg .* --device cuda:N$", line), line)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
