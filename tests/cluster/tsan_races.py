#!/usr/bin/env python3
"""Runs a program of the thread sanitizer build; fails if the program does, or on a race of ours.

Usage: tsan_races.py PROGRAM [arguments]. The distribution's gRPC is built without the sanitizer: how
it orders its own memory, also in its headers, is not seen, so its races are no news. A race is ours
if the first frame of either access that is no container's is Baton's code: what headers make part of
our program (containers, JSON, Asio) acts for the code that calls it. One order of gRPC's is taken on
trust: it calls OnDone, which frees the call, when all else about the call is over.
"""
import os
import re
import subprocess
import sys
import tempfile

ACCESS = re.compile(r"^  (?:Previous )?(?:atomic )?(?:read|write) of size", re.IGNORECASE)
FRAME = re.compile(r"^    #\d+ (.*)")
CONTAINER = re.compile(
    r"libtsan|^(?:\w+ )*std::|^operator (?:new|delete)|__gnu_cxx|/usr/include/c\+\+/|"
    r"/usr/include/(?:absl/(?:container|hash|types|functional)|boost|nlohmann)/")


ON_DONE = re.compile(r"^baton::(?:Server|Client)Call<.*>::OnDone\(")


def code_of(frames):
    """The first frame that is no container's."""
    return next((frame for frame in frames if not CONTAINER.search(frame)), "")


def is_ours(code):
    return code.startswith("baton::") or " ../../" in code


def accesses(report):
    """The stacks of the accesses of one report."""
    stacks, open_stack = [], None
    for line in report.splitlines():
        if ACCESS.match(line):
            open_stack = []
            stacks.append(open_stack)
        elif (frame := FRAME.match(line)) and open_stack is not None:
            open_stack.append(frame[1])
        else:
            open_stack = None
    return stacks


def about_baton(report):
    if "data race" not in report:
        return True
    codes = [code_of(frames) for frames in accesses(report)]
    return any(map(is_ours, codes)) and not any(map(ON_DONE.match, codes))


def main():
    with tempfile.TemporaryDirectory() as folder:
        options = (f"halt_on_error=0:exitcode=0:log_path={folder}/report:"
                   f"suppressions={os.path.join(os.path.dirname(__file__), 'tsan.supp')}")
        code = subprocess.run(sys.argv[1:], env=os.environ | {"TSAN_OPTIONS": options}).returncode
        text = "".join(open(entry.path).read() for entry in os.scandir(folder))
    reports = [part for part in text.split("=" * 18) if "WARNING: ThreadSanitizer" in part]
    ours = [report for report in reports if about_baton(report)]
    print(f"{len(reports)} reports of the sanitizer, {len(ours)} of them about Baton")
    for report in ours:
        print(report)
    sys.exit(code != 0 or bool(ours))


if __name__ == "__main__":
    main()
