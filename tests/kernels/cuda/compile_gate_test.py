#!/usr/bin/env python3
"""What the compile gate says where it can fetch no toolkit.

Usage: compile_gate_test.py [unittest arguments]
"""
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

GATE = pathlib.Path(__file__).resolve().parent / "compile_gate.py"


class CompileGateTest(unittest.TestCase):
    def gate(self, script, *options):
        with tempfile.TemporaryDirectory() as folder:
            toolkit = pathlib.Path(folder) / "toolkit.sh"
            toolkit.write_text(f"#!/bin/bash\n{script}\n")
            toolkit.chmod(0o755)
            return subprocess.run([sys.executable, "-B", GATE, "--toolkit", toolkit, *options],
                                  capture_output=True, text=True, timeout=100)

    def test_slow_net_skips_and_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            half = pathlib.Path(folder) / "half"
            done = self.gate(f"trap 'rm {half}' EXIT; touch {half}; sleep 90",
                             "--fetch-limit", "1")
            self.assertLess(time.monotonic() - begin, 60)
            self.assertEqual(done.returncode, 77, done.stderr)
            self.assertIn("took more than 1.0 s", done.stdout)
            self.assertFalse(half.exists())

    def test_no_net_skips_with_the_reason(self):
        done = self.gate("echo no route to host >&2; exit 1")
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("no route to host", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
