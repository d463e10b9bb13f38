#!/usr/bin/env python3
"""What deploy/check_gpu.py and quickstart.sh --device cuda say, by drivers made for it.

Usage: check_gpu_test.py [unittest arguments]
"""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVER = """
int cuDriverGetVersion(int* v) { *v = VERSION; return 0; }
int cuInit(unsigned flags) { return ERROR; }
int cuDeviceGetCount(int* n) { *n = COUNT; return 0; }
int cuDeviceGetAttribute(int* v, int what, int device) {
  *v = what == 75 ? CAPABILITY / 10 : what == 76 ? CAPABILITY % 10 : -1;
  return 0;
}
"""


class CheckGpuTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-check-gpu-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.library = self.folder / "libcuda.so.1"

    def make_driver(self, version=13000, error=0, count=1, capability=90):
        source = self.folder / "driver.c"
        source.write_text(DRIVER)
        subprocess.run(["cc", "-shared", "-fPIC", f"-DVERSION={version}", f"-DERROR={error}",
                        f"-DCOUNT={count}", f"-DCAPABILITY={capability}", source, "-o",
                        self.library], check=True)

    def run_with_driver(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=self.folder,
                              env={**os.environ, "LD_LIBRARY_PATH": str(self.folder)})
        return done.returncode, done.stdout, done.stderr

    def check(self):
        code, _, errors = self.run_with_driver(ROOT / "deploy/check_gpu.py")
        return code, errors

    def test_a_gpu_that_can_be_used(self):
        for made in ({}, {"version": 13020, "capability": 80}, {"capability": 120, "count": 8}):
            with self.subTest(made):
                self.make_driver(**made)
                self.assertEqual(self.check(), (0, ""))

    def test_what_is_missing_is_said_in_one_line_with_the_cure(self):
        for made, says in (({"version": 12080}, ("12.8", "580")),
                           ({"error": 999}, ("no GPU", "999", "nvidia-smi")),
                           ({"count": 0}, ("no GPU", "CUDA_VISIBLE_DEVICES")),
                           ({"capability": 75}, ("sm_75", "sm_80"))):
            with self.subTest(made):
                self.make_driver(**made)
                code, errors = self.check()
                self.assertEqual(code, 2)
                self.assertEqual(errors.count("\n"), 1, errors)
                for word in says:
                    self.assertIn(word, errors)

    def test_no_driver_at_all(self):
        self.library.write_text("This is no library.")
        code, errors = self.check()
        self.assertEqual(code, 2)
        self.assertIn("no NVIDIA driver: install", errors)

    def test_quickstart_refuses_before_it_builds(self):
        self.make_driver(version=12080)
        code, out, errors = self.run_with_driver(ROOT / "deploy/quickstart.sh", "--device", "cuda",
                                                 "--dir", self.folder / "run")
        self.assertEqual(code, 2)
        self.assertEqual(out, "")
        self.assertIn("12.8", errors)
        self.assertFalse((self.folder / "run").exists())

    def test_quickstart_names_the_devices_that_there_are(self):
        for options in (["--device", "gpu"], ["--device"]):
            code, out, errors = self.run_with_driver(ROOT / "deploy/quickstart.sh", *options)
            self.assertEqual((code, out), (2, ""))
            self.assertIn("must be cpu or cuda", errors)


if __name__ == "__main__":
    unittest.main(verbosity=2)
