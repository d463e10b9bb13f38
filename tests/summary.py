#!/usr/bin/env python3
"""Sums up what ctest left in build/PRESET/NAME.{log,xml}: time per label, the slowest steps of the run
with their CPU time and its slowest tests, what could not run, failures, verdict.

Usage: summary.py ELAPSED PRESET/NAME...   Exits 1 unless every test ran and passed. A kernel set that a
test left out is a failure if this CPU has what the set needs.
"""
import collections
import ctypes
import pathlib
import platform
import re
import sys
import xml.etree.ElementTree

LABEL_TIME = re.compile(r"^(\w+)\s+=\s+([\d.]+) sec\*proc \((\d+) tests?\)", re.M)
LEFT_OUT_SET = re.compile(r'kernels = \\?"(\w+)\\?": this CPU lacks')
# GoogleTest's count of skipped tests, unittest's.
SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) tests?, listed below|\bskipped=(\d+)\)", re.M)
# Why: GoogleTest's line behind the place, unittest's text in quotes.
REASON = re.compile(r""": Skipped\n(.+)|\.\.\. skipped ['"](.+)['"]$""", re.M)

V3 = {"avx2", "fma", "f16c"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
NEEDS = {"portable": set(), "x86_64_v3": V3, "x86_64_v4": V4,
         "x86_64_v4_bf16": V4 | {"avx512_bf16"},
         "x86_64_amx": V4 | {"avx512_bf16", "amx_bf16", "amx_tile"}}


def gives_tiles():
    """Whether the system lets this process use AMX: ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA."""
    return platform.machine() == "x86_64" and ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0


def runnable_sets():
    """The kernel sets that the system's own list of CPU flags promises."""
    flags = re.search(r"^flags\s*:(.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    flags = set(flags[1].split()) if flags else set()
    sets = {name for name, needs in NEEDS.items() if needs <= flags}
    return sets if gives_tiles() else sets - {"x86_64_amx"}


class Summary:
    def __init__(self, runnable):
        self.runnable = runnable
        self.passed, self.failed = 0, []
        self.flaky = []                                    # Failed, and passed alone.
        self.skipped = {}                                  # Program -> number of tests, why.
        self.left_out = collections.defaultdict(list)      # Kernel set -> programs without it.
        self.times = []                                    # Seconds and name.

    def add(self, result, case, again=None):
        """`again`: the same case of a second run, if there was one."""
        name = f"{result}: {case.get('name')}"
        self.times.append((float(case.get("time") or 0), name))
        if case.get("status") == "fail" and again is not None and again.get("status") == "run":
            self.flaky.append(name)
            case = again
        if case.get("status") != "run":
            return self.failed.append(f"{name} ({case.get('status')})")
        output = case.findtext("system-out") or ""
        if skipped := sum(int(a or b) for a, b in SKIPPED.findall(output)):
            reasons = {a or b for a, b in REASON.findall(output)} or {"no reason was printed"}
            self.skipped[name] = (skipped, "; ".join(sorted(reasons)))
        for kernel_set in sorted(set(LEFT_OUT_SET.findall(output))):
            self.left_out[kernel_set].append(name)
            if kernel_set in self.runnable:
                return self.failed.append(f"{name} left out {kernel_set}, which this CPU runs")
        self.passed += 1

    def lines(self, elapsed):
        for kernel_set, programs in sorted(self.left_out.items()):
            yield f"  could not run: {kernel_set} in {len(programs)} test programs (the CPU lacks it)"
        for name, (count, reasons) in self.skipped.items():
            yield f"  skipped: {count} tests of {name}: {reasons}"
        for name in self.flaky:
            yield f"  failed among others, passed alone: {name}"
        for failure in self.failed:
            yield f"  failed: {failure}"
        yield (f"{self.passed} passed, {len(self.failed)} failed, {len(self.flaky)} only alone, "
               f"{sum(count for count, _ in self.skipped.values())} "
               f"tests skipped, {len(self.left_out)} kernel sets without a CPU for them")
        verdict = "PASS" if self.passed and not self.failed else "FAIL"
        yield f"{verdict}: {self.passed + len(self.failed)} tests in {elapsed}"


def cases(file):
    """Of a run, by name; none of a run that there was not."""
    if not file.exists():
        return {}
    root = xml.etree.ElementTree.parse(file).getroot()
    return {case.get("name"): case for case in root.iter("testcase")}


def slowest(build, summary):
    """The ten longest of the run's steps, and of its tests."""
    steps = build / "steps.txt"
    lines = steps.read_text().splitlines() if steps.exists() else []
    steps = [(float(seconds), f"{int(cpu):6} s CPU  {name}")
             for seconds, cpu, name in (line.split(" ", 2) for line in lines)]
    for what, times in (("step", steps), ("test", summary.times)):
        for seconds, name in sorted(times, reverse=True)[:10]:
            print(f"  {what} {seconds:8.1f} s  {name}")


def main(build, elapsed, results):
    summary = Summary(runnable_sets())
    for result in results:
        file = build / f"{result}.xml"
        if not file.exists():
            summary.failed.append(f"{result}: ctest left no result")
            continue
        second = cases(build / f"{result}-again.xml")
        for name, case in cases(file).items():
            summary.add(result, case, second.get(name))
        log = file.with_suffix(".log").read_text()
        for label, seconds, count in LABEL_TIME.findall(log):
            print(f"  {result:16} {label:10} {float(seconds):8.1f} s  {count:>4} test programs")
    slowest(build, summary)
    *lines, verdict = summary.lines(elapsed)
    print(*lines, verdict, sep="\n")
    return 0 if verdict.startswith("PASS") else 1


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(__file__).resolve().parents[1] / "build", sys.argv[1], sys.argv[2:]))
