#!/usr/bin/env python3
"""The pack for machines with a GPU, made of emulated programs and run as it would be there.

Usage: pack_test.py BUILD_FOLDER [unittest arguments]
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/cluster"))
from process_cluster import await_true  # noqa: E402
PACK = None
# Everything of the pack, nothing of this machine.
BARE = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
FAST = "detector=off"


class PackTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        nccl = PACK.parent / "kernels/emulation/nccl/libnccl_emulated.so"
        done = subprocess.run([ROOT / "tests/gpu/pack.sh", "--emulated", "--no-build", "--nccl", nccl],
                              capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-gpu-pack-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def run_pack(self, *options, pack=None, gpu=FAST):
        """(exit code, {part: what results.json says of it})"""
        out = self.folder / "out"
        done = subprocess.run([(pack or PACK) / "run.sh", out, *options], capture_output=True,
                              text=True, timeout=600, cwd="/",
                              env={**BARE, "BATON_EMULATED_GPU": gpu})
        self.assertTrue((out / "results.json").exists(), done.stdout + done.stderr)
        self.assertGreater((out / "log.txt").stat().st_size, 0)
        results = json.loads((out / "results.json").read_text())
        parts = {part["part"]: part for part in results["parts"]}
        self.assertEqual(results["failed"], sum(part["status"] in ("failed", "late")
                                                for part in results["parts"]))
        self.assertEqual(len(parts), len(results["parts"]))
        return done.returncode, parts

    def test_every_part_of_each_call_passes(self):
        parts = {}
        # The detectors of the emulation would take most of a cluster's time.
        for call, gpu, count in (("1", "", 6), ("2", "", 4), ("3", FAST, 5), ("4", FAST, 5)):
            code, of_call = self.run_pack("--quick", "--only", call, gpu=gpu)
            self.assertEqual((code, len(of_call)), (0, count), of_call)
            parts.update(of_call)
        self.assertEqual(len(parts), 20)
        for name, part in parts.items():
            expected = {"sanitizer": ("passed", "skipped"), "libraries": ("passed", "skipped"),
                        "serving_8b": ("skipped",)}.get(name, ("passed",))
            self.assertIn(part["status"], expected, part)
        self.check_speed(parts)
        self.assertIn("emulated sm_90", parts["device"]["says"])
        self.assertGreater(json.loads(parts["launches"]["says"])["per_launch"], 0)
        costs = json.loads(parts["steps"]["says"])
        for step in ("device_time", "decode_step", "decode_step_of_two"):
            self.assertGreater(costs[step], 0)
        self.assertLessEqual({"gap", "gap_of_two"}, costs.keys())

    def check_speed(self, parts):
        """What was measured is in the results: of each kind of operator, and of a cluster."""
        kinds = {"nccl_costs": ("first init", "NCCL, two ranks", "abort of"),
                 "nccl": ("first request", "handoff over", "K/V over NCCL", "decode killed"),
                 "products": ("gemm", "gather", "swap", "copy_pieces", "rms_norm", "sample", "score",
                              "memory of", "load"),
                 "contexts": ("attention prefill", "attention decode"), "serving_1b": ("quick",)}
        for name, wanted in kinds.items():
            rows = parts[name]["rows"]
            for row in rows:
                self.assertGreaterEqual(row["value"], 0, row)
                if "roof" in row:
                    self.assertAlmostEqual(row["share"], row["value"] / row["roof"], places=6)
            for kind in wanted:
                self.assertTrue([row for row in rows if row["name"].startswith(kind)], kind)
        for name in ("products", "contexts"):
            self.assertEqual([row["name"] for row in parts[name]["rows"][:5]],
                             ["copy bandwidth, read and written", "pinned to device",
                              "device to pinned", "mma.sync peak", "wgmma peak"])
        served = {row["name"]: row for row in parts["serving_1b"]["rows"]}
        for what in ("TTFT p50", "output", "decode step", "host time of a step"):
            for load in ("1 stream", "2 streams"):
                self.assertGreater(served[f"quick {load} {what}"]["value"], 0)
        self.assertEqual([name for name in parts if "rows" in parts[name]], list(kinds))

    def test_a_part_that_is_stopped_keeps_the_rows_that_it_had(self):
        pack = self.folder / "pack"
        shutil.copytree(PACK, pack, symlinks=True)
        program = pack / "tests/gpu_tests"
        program.write_text('#!/bin/sh\nwhile [ "$1" != --out ]; do shift; done\n'
                           'printf \'{"name": "a"}\\n{"name": "b"}\\n{"na\' >"$2"\nexec sleep 100\n')
        code, parts = self.run_pack("--only", "products", "--limit", "1", pack=pack)
        self.assertEqual((code, parts["products"]["status"]), (1, "late"))
        self.assertEqual(parts["products"]["rows"], [{"name": "a"}, {"name": "b"}])

    def test_without_an_nccl_its_parts_are_skipped_and_say_why(self):
        pack = self.folder / "pack"
        shutil.copytree(PACK, pack, symlinks=True)
        shutil.rmtree(pack / "nccl")
        for part in ("nccl", "nccl_costs"):
            code, parts = self.run_pack("--only", part, pack=pack)
            self.assertEqual((code, parts[part]["status"]), (0, "skipped"))
            self.assertIn("pack.sh --nccl FILE brings one", parts[part]["says"])

    def test_a_machine_without_a_gpu_fails_and_says_why(self):
        code, parts = self.run_pack("--only", "device", gpu="driver=0")
        self.assertEqual(code, 1)
        self.assertEqual(parts["device"]["status"], "failed")
        self.assertIn("no NVIDIA driver", parts["device"]["says"])
        self.assertEqual(list(parts), ["device"])

    def test_the_first_gpu_is_the_one_that_must_be_usable(self):
        pack = self.folder / "pack"
        shutil.copytree(PACK, pack, symlinks=True)
        program = pack / "bin/baton-prefill"
        program.unlink()
        for first, second, code in (("", "", 0), ("full", "", 1), ("", "full", 0)):
            gpus = [{"architecture": "sm_90", "index": i, "name": "NVIDIA", "unusable": unusable}
                    for i, unusable in enumerate((first, second))]
            told = json.dumps({"build": "cuda", "gpus": gpus}, separators=(",", ":"))
            program.write_text(f"#!/bin/sh\necho '{told}'\n")
            program.chmod(0o755)
            self.assertEqual(self.run_pack("--only", "device", pack=pack)[0], code, told)

    def test_a_part_that_does_not_end_is_stopped_and_one_that_fails_is_named(self):
        pack = self.folder / "pack"
        shutil.copytree(PACK, pack, symlinks=True)
        test = pack / "tests/gpu_tests"
        test.write_text("#!/bin/sh\nexec sleep 100\n")
        code, parts = self.run_pack("--only", "arithmetic", "--limit", "1", pack=pack)
        self.assertEqual((code, parts["arithmetic"]["status"]), (1, "late"))
        test.write_text("#!/bin/sh\necho '[  FAILED  ] Mma.\"x\"\ty'; echo end; exit 1\n")
        code, parts = self.run_pack("--only", "arithmetic", pack=pack)
        self.assertEqual((code, parts["arithmetic"]["status"]), (1, "failed"))
        self.assertEqual(parts["arithmetic"]["says"], '[  FAILED  ] Mma."x" y')
        test.write_text("#!/bin/sh\necho '[==========] 0 tests from 0 test suites ran.'\n")
        code, parts = self.run_pack("--only", "arithmetic", pack=pack)
        self.assertEqual((code, parts["arithmetic"]["status"]), (1, "failed"))

    def test_limits_of_parts_keep_those_of_calls(self):
        parts = re.findall(r"^(?:part|tests) (\d) (\w+) (\d+)", (PACK / "run.sh").read_text(), re.M)
        self.assertEqual(len(parts), 20)
        for call in "1234":
            self.assertLess(sum(int(limit) for c, _, limit in parts if c == call), 600 - 60)
        self.assertLessEqual(sum(int(limit) for _, _, limit in parts), 27 * 60)

    def test_programs_take_their_libraries_from_the_pack(self):
        names = [*(PACK / "bin").iterdir(), PACK / "tests/gpu_tests"]
        self.assertEqual(len(names), 5)
        self.assertLess(PACK.with_suffix(".tar.xz").stat().st_size, 50 << 20)
        for path in names:
            said = subprocess.run(["ldd", path], capture_output=True, text=True, timeout=60).stdout
            for line in said.splitlines():
                if "=>" not in line:
                    continue
                library, _, where = line.strip().partition(" => ")
                if library.split(".so")[0] in ("libc", "libm", "libdl", "librt", "libpthread",
                                               "libresolv"):
                    continue
                self.assertIn("/pack/", where, f"{path.name}: {line}")

    def bare_root(self):
        """A folder with the pack and the C library's own files, which stands for a whole system."""
        root = self.folder / "root"
        shutil.copytree(PACK, root, symlinks=True)
        said = subprocess.run(["ldd", *(PACK / "bin").iterdir(), PACK / "tests/gpu_tests"],
                              capture_output=True, text=True, timeout=60, check=True).stdout
        system = {path for path in re.findall(r"(/\S+) \(0x", said) if "/pack/" not in path}
        self.assertLessEqual(len(system), 8, system)
        for path in system:
            copy = root / path.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        return root

    def test_programs_run_where_there_is_nothing_but_the_c_library(self):
        root = self.bare_root()
        enter = [] if os.geteuid() == 0 else ["unshare", "--map-root-user"]
        if enter and subprocess.run([*enter, "true"], check=False).returncode != 0:
            self.skipTest("this user may not change the root of a process")
        enter += ["chroot", root]
        environment = {**BARE, "BATON_EMULATED_GPU": FAST}
        for command in (["/bin/baton-prefill", "--list-gpus"], ["/bin/baton-router", "--help"],
                        ["/bin/baton", "--help"],
                        ["/tests/gpu_tests", "--gtest_filter=SweepTest.OfNorms"],
                        ["/tests/gpu_tests", "bench", "--quick", "--groups", "none"]):
            done = subprocess.run([*enter, *command], capture_output=True, text=True, timeout=120,
                                  env=environment, check=False)
            self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
        ready = root / "ready"
        with subprocess.Popen(
                [*enter, "/bin/baton-decode", "--model", "/deploy/models/tiny-kjv", "--port", "0",
                 "--device", "cuda", "--num-blocks", "16", "--max-model-len", "64", "--gpu-graphs",
                 "off", "--threads", "1", "--ready-file", "/ready"],
                env=environment, stderr=subprocess.PIPE, text=True) as worker:
            try:
                await_true(lambda: ready.exists() or worker.poll() is not None, 100, "it is ready")
            finally:
                worker.terminate()
            errors = worker.communicate(timeout=60)[1]
        self.assertTrue(ready.exists(), errors)
        self.assertEqual(worker.returncode, 0, errors)


if __name__ == "__main__":
    PACK = pathlib.Path(sys.argv.pop(1)).resolve() / "pack"
    unittest.main(verbosity=2)
