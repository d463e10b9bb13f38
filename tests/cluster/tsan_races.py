#!/usr/bin/env python3
"""Runs a program of the thread sanitizer build; fails if the program does, or on a race of ours.

Usage: tsan_races.py PROGRAM [arguments]. The distribution's gRPC is built without the sanitizer: how
it orders its own memory, also in its headers, is not seen, so its races are no news. A race is ours
if the first frame of either access that is no container's is Baton's code: what headers make part of
our program (containers, JSON, Asio, Protobuf) acts for the code that calls it. Two orders of gRPC's
are taken on trust where it touches the memory itself: after we made it and before we free it, and
the next event of a call after OnReadDone has asked for it. All else common/rpc/reaction_order.h tells.
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
    r"\bbaton::v1::\w+::|\.pb\.(?:cc|h):|google::protobuf::|"
    r"/usr/include/(?:absl/(?:container|hash|types|functional)|boost|nlohmann)/")
READ = re.compile(r"^baton::(?:ClientCall<.*>|SessionClient|SessionServer)::OnReadDone\(")
PARSE = re.compile(r"^grpc::internal::CallOpRecvMessage<")
ALLOCATION = re.compile(r"^(?:operator (?:new|delete)|[cm]alloc|free)\b")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def code_of(frames):
    """The first frame that is no container's."""
    return next((frame for frame in frames if not CONTAINER.search(frame)), "")


def is_ours(code):
    return code.startswith("baton::") or " ../../" in code or f" {ROOT}/" in code


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


def is_trusted(frames, other):
    """`other` is an access of gRPC's own, to memory that was made or freed, or to a call's event."""
    if is_ours(code_of(other)):
        return False
    is_read = any(map(READ.search, frames)) and any(map(PARSE.search, other))
    return is_read or bool(ALLOCATION.search(frames[0]))


def about_baton(report):
    if "data race" not in report:
        return True
    stacks = [frames or [""] for frames in accesses(report)]
    if len(stacks) == 2 and (is_trusted(*stacks) or is_trusted(*reversed(stacks))):
        return False
    return any(is_ours(code_of(frames)) for frames in stacks)


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
