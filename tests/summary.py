#!/usr/bin/env python3
"""Sums up what ctest left in build/PRESET/ctest.{log,xml}: time per label, failures, verdict.

Usage: summary.py ELAPSED PRESET...   Exits 1 unless every test ran and passed.
"""
import pathlib
import re
import sys
import xml.etree.ElementTree

LABEL_TIME = re.compile(r"^(\w+)\s+=\s+([\d.]+) sec\*proc \((\d+) tests?\)", re.M)


def main():
    elapsed, *presets = sys.argv[1:]
    build = pathlib.Path(__file__).resolve().parents[1] / "build"
    passed, failed = 0, []
    for preset in presets:
        results = build / preset / "ctest.xml"
        if not results.exists():
            failed.append(f"{preset}: ctest left no result")
            continue
        for case in xml.etree.ElementTree.parse(results).getroot().iter("testcase"):
            if case.get("status") == "run":
                passed += 1
            else:
                failed.append(f"{preset}: {case.get('name')} ({case.get('status')})")
        name = "asan" if preset == "debug" else preset
        for label, seconds, count in LABEL_TIME.findall((build / preset / "ctest.log").read_text()):
            print(f"  {name:8} {label:10} {float(seconds):8.1f} s  {count:>4} test programs")
    for failure in failed:
        print(f"  failed: {failure}")
    print(f"{passed} passed, {len(failed)} failed")
    verdict = "FAIL" if failed or not passed else "PASS"
    print(f"{verdict}: {passed + len(failed)} tests in {elapsed}")
    return 0 if verdict == "PASS" else 1


if __name__ == "__main__":
    sys.exit(main())
