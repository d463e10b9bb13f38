#!/usr/bin/env python3
"""What tests/summary.py says of made-up results. Usage: summary_test.py [unittest arguments]"""
import contextlib
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import summary

NO_AMX = 'not tested: INVALID_ARGUMENT: kernels = "x86_64_amx": this CPU lacks AMX; use auto'
LOG = "Label Time Summary:\nkernels    =  12.50 sec*proc (2 tests)\n"


class SummaryTest(unittest.TestCase):
    def sum_up(self, cases, runnable=("portable", "x86_64_v3"), again=()):
        """(exit code, what was printed) of one preset with these (name, status, output), and a
        second run of those that failed."""
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            (build / "release").mkdir()
            for file, run in (("all", cases), ("all-again", again)):
                tests = "".join(f'<testcase name="{name}" status="{status}"><system-out>{text}'
                                "</system-out></testcase>" for name, status, text in run)
                (build / "release" / f"{file}.xml").write_text(f"<testsuite>{tests}</testsuite>")
            (build / "release" / "all.log").write_text(LOG)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), \
                    mock.patch.object(summary, "runnable_sets", lambda: set(runnable)):
                code = summary.main(build, "1:00", ["release/all"])
        return code, printed.getvalue()

    def test_all_that_ran_and_passed_is_a_pass_with_its_times(self):
        code, text = self.sum_up([("a_test", "run", "ok"), ("b_test", "run", "")])
        self.assertEqual(code, 0, text)
        self.assertIn("kernels        12.5 s     2 test programs", text)
        self.assertTrue(text.endswith("PASS: 2 tests in 1:00\n"), text)

    def test_the_ten_slowest_steps_and_tests_are_told(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as told:
            build = pathlib.Path(folder)
            (build / "steps.txt").write_text("".join(f"{i} {2 * i} Build: {i}\n" for i in range(12)))
            some = summary.Summary(set())
            some.times = [(2.5, "release/all: quick"), (70.0, "release/all: slow")]
            summary.slowest(build, some)
        lines = told.getvalue().splitlines()
        self.assertEqual(len(lines), 12)
        self.assertEqual(lines[0].split(), ["step", "11.0", "s", "22", "s", "CPU", "Build:", "11"])
        self.assertEqual(lines[10].split(), ["test", "70.0", "s", "release/all:", "slow"])

    def test_one_that_failed_or_did_not_run_is_a_failure(self):
        for status in ("fail", "notrun", "disabled"):
            code, text = self.sum_up([("a_test", "run", ""), ("b_test", status, "")])
            self.assertEqual(code, 1)
            self.assertIn(f"failed: release/all: b_test ({status})", text)

    def test_one_that_failed_and_passed_alone_is_named(self):
        first = [("a_test", "run", ""), ("b_test", "fail", "")]
        code, text = self.sum_up(first, again=[("b_test", "run", "")])
        self.assertEqual(code, 0, text)
        self.assertIn("failed among others, passed alone: release/all: b_test", text)
        self.assertIn("2 passed, 0 failed, 1 only alone", text)
        for status in ("fail", "notrun"):
            code, text = self.sum_up(first, again=[("b_test", status, "")])
            self.assertEqual(code, 1)
            self.assertIn("failed: release/all: b_test (fail)", text)
        code, _ = self.sum_up([("b_test", "notrun", "")], again=[("b_test", "run", "")])
        self.assertEqual(code, 1)

    def test_no_result_and_no_test_at_all_are_failures(self):
        self.assertEqual(self.sum_up([])[0], 1)
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(summary.main(pathlib.Path(folder), "1:00", ["release/all"]), 1)

    def test_skipped_tests_are_counted(self):
        code, text = self.sum_up([
            ("gtest", "run", "a.cc:5: Skipped\nno room\n[  SKIPPED ] 1 test, listed below:\n"),
            ("more", "run", "[  PASSED  ] 5 tests.\n[  SKIPPED ] 4 tests, listed below:\n"),
            ("python", "run", "test_a (X) ... skipped 'no net'\n\nOK (skipped=2)\n")])
        self.assertEqual(code, 0, text)
        self.assertIn("skipped: 1 tests of release/all: gtest: no room", text)
        self.assertIn("skipped: 4 tests of release/all: more: no reason was printed", text)
        self.assertIn("skipped: 2 tests of release/all: python: no net", text)
        self.assertIn("3 passed, 0 failed, 0 only alone, 7 tests skipped", text)

    def test_a_kernel_set_that_the_cpu_lacks_is_counted(self):
        code, text = self.sum_up([("a_test", "run", NO_AMX), ("b_test", "run", 2 * NO_AMX)])
        self.assertEqual(code, 0, text)
        self.assertIn("could not run: x86_64_amx in 2 test programs", text)
        self.assertIn("1 kernel sets without a CPU", text)

    def test_a_kernel_set_left_out_though_the_cpu_has_it_is_a_failure(self):
        code, text = self.sum_up([("a_test", "run", NO_AMX)], runnable=("x86_64_amx",))
        self.assertEqual(code, 1)
        self.assertIn("a_test left out x86_64_amx, which this CPU runs", text)

    def test_this_machine_runs_the_sets_that_its_flags_tell(self):
        sets = summary.runnable_sets()
        self.assertIn("portable", sets)
        self.assertLessEqual(sets, set(summary.NEEDS))


if __name__ == "__main__":
    unittest.main(verbosity=2)
