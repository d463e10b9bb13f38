#!/usr/bin/env python3
"""Programs without a sanitizer have no fail points: neither their names nor their variables.

Usage: release_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import pathlib
import re
import sys
import unittest

BIN = None
ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("common", "prefill_worker", "decode_worker", "router")


def names_in_the_sources():
    return {name for folder in FOLDERS for path in (ROOT / folder).rglob("*.cc")
            for name in re.findall(r'BATON_FAIL_POINT\("([^"]+)"\)', path.read_text())}


class ReleaseTest(unittest.TestCase):
    def test_each_role_has_each_moment_in_the_sources(self):
        moments = ("queued", "prefilling", "transferring", "decoding", "finishing")
        of_sequences = {f"{role}.{moment}" for moment in moments
                        for role in ("prefill", "decode", "router")}
        self.assertEqual(names_in_the_sources(),
                         of_sequences | {"rank.exchange", "rank.layer"})

    def test_release_programs_hold_no_name_of_a_fail_point(self):
        words = [*names_in_the_sources(), "BATON_FAIL_POINT", "BATON_FAIL_LOG"]
        for name in ("baton", "baton-prefill", "baton-decode", "baton-router"):
            program = (pathlib.Path(BIN) / name).read_bytes()
            self.assertIn(b"--ready-file", program, "not one of the programs")
            self.assertEqual([w for w in words if w.encode() in program], [], name)


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main(verbosity=2)
