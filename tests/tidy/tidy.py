#!/usr/bin/env python3
"""Checks that the tree keeps its own rules (ARCHITECTURE.md, tests/tidy/README.md).

Usage: tidy.py [--root DIR] [--build DIR]
Prints one line per violation, "file:line: [rule] what", and exits 1 if there is any.
Standard library only; seconds to run.
"""
import argparse
import json
import pathlib
import re
import sys

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 70
MAX_KERNEL_LINES = 150
MAX_MAIN_LINES = 60
MAX_README_LINES = 30
README_LIMITS = {"kernels/README.md": 90}  # Table and programs.
MAX_ROOT_CMAKE_LINES = 150

TOP_FOLDERS = ("proto", "common", "kernels", "prefill_worker", "decode_worker", "router", "deploy",
               "tests")
CODE_FOLDERS = tuple(f for f in TOP_FOLDERS if f != "tests")
SKIPPED_FOLDERS = {"build", "target", ".git", "__pycache__", "third_party"}
CPP = {".cc", ".h", ".cu", ".cuh"}
SOURCE = CPP | {".py", ".rs", ".sh"}

# Which folders each folder includes, beside itself and what stands in BASE. Dependencies point down
# only; an edge that nothing uses is removed, so this is also the picture of the tree.
BASE = ["common/base"]
EDGES = {
    "common/base": [],
    "common/checkpoint": [],
    "common/engine": ["common/kv_cache", "common/model"],
    "common/http": [],
    "common/kv_cache": ["kernels/api"],
    "common/model": ["common/checkpoint", "common/kv_cache", "kernels", "kernels/api"],
    "common/node": ["common/kv_cache", "common/model", "common/transport"],
    "common/process": ["common/checkpoint", "common/engine", "common/http", "common/kv_cache",
                       "common/model", "common/node", "common/rpc", "common/telemetry",
                       "common/transport", "common/transport/tcp"],
    "common/rpc": ["common/node", "common/transport"],
    "common/telemetry": [],
    "common/transport": ["common/kv_cache"],
    "common/transport/tcp": ["common/transport"],
    "decode_worker": ["common/engine", "common/kv_cache", "common/node", "common/process",
                      "common/rpc", "common/telemetry", "common/transport"],
    "deploy/cli": ["common/node", "common/process", "common/rpc"],
    "kernels": ["kernels/api", "kernels/cpu"],  # make_device: the one place that knows them all.
    "kernels/api": [],
    "kernels/cpu": ["kernels/api"],
    "prefill_worker": ["common/engine", "common/kv_cache", "common/node", "common/process",
                       "common/rpc", "common/telemetry", "common/transport"],
    "router": ["common/checkpoint", "common/engine", "common/http", "common/node",
               "common/process", "common/rpc", "common/telemetry", "router/generation",
               "router/openai", "router/routing", "router/text"],
    "router/generation": ["common/checkpoint", "common/node", "router", "router/text"],
    "router/openai": ["common/http", "router", "router/generation"],
    "router/routing": [],
    "router/text": [],
}

BANNED = {
    "::now(": re.compile(r"::now\("),
    "sleep_for": re.compile(r"\bsleep_for\b"),
    "std::thread": re.compile(r"\bstd::thread\b"),
    "random_device": re.compile(r"\brandom_device\b"),
    "getenv": re.compile(r"\bgetenv\b"),
}
# (file, token): why it is needed there.
BANNED_EXCEPTIONS = {
    ("common/node/node_thread.cc", "::now("): "drives a node: the one who tells it the time",
    ("common/node/node_thread.cc", "std::thread"): "the engine thread",
    ("common/node/node_thread.h", "std::thread"): "the engine thread",
    ("common/transport/tcp/monotonic_clock.h", "::now("): "deadlines of the progress thread",
    ("common/transport/tcp/tcp_kv_transport.cc", "std::thread"): "the transport's progress thread",
    ("common/transport/tcp/tcp_kv_transport.h", "std::thread"): "the transport's progress thread",
    ("common/http/http_server.cc", "std::thread"): "the threads that run the server's io_context",
    ("common/base/fail_point.cc", "getenv"): "sanitizer builds: the fault that a test asks for",
    ("router/generation/seed_source.cc", "random_device"): "the seed of a request that names none",
    ("deploy/cli/clock.cc", "::now("): "the command line tool's only clock",
    ("tests/bench/machine_roofs.cc", "::now("): "the benchmarks' only clock",
    ("tests/transport/fault_proxy.cc", "std::thread"): "the proxy's own thread",
    ("tests/transport/fault_proxy.h", "std::thread"): "the proxy's own thread",
    ("tests/unit/common/transport/loopback_test.cc", "std::thread"): "a peer on its own thread",
    ("tests/kernels/attention_grid_test.cc", "getenv"): "the nightly form of the grid",
    ("tests/kernels/fuzz_fixture.h", "getenv"): "number of cases and the first seed",
    ("tests/planted/planted.h", "getenv"): "the bug that a driver test asks for",
    ("tests/sim/sim_test.cc", "getenv"): "number of seeds and the one to replay",
    ("tests/sim/exhaustive_test.cc", "getenv"): "the nightly form",
}

# A .cc without a test file of its own: why. "main.cc" stands for every program's.
UNTESTED = {
    "main.cc": "tests/cluster starts every program",
    "common/transport/tcp/connections.cc": "tests/transport: contract, faults, hostile clients",
    "common/transport/tcp/incoming_link.cc": "tests/transport: contract, faults, hostile clients",
    "common/transport/tcp/progress_loop.cc": "tests/transport: contract, faults, hostile clients",
    "common/transport/tcp/tcp_kv_transport.cc": "tests/transport: contract, faults, hostile clients",
    "deploy/cli/audit.cc": "tests/cluster/audit_test.py; what it decides is in audit_report.cc",
    "kernels/cpu/gemm.cc": "the products of attention: tests/kernels/cpu/attention_test.cc",
    "deploy/cli/audit.cc": "tests/cluster/audit_test.py; what it decides is in audit_report.cc",
    "deploy/cli/clock.cc": "one call of the steady clock",
    "deploy/cli/command_line.cc": "tests/cluster/supervisor_test.py runs every command by it",
    "deploy/cli/down.cc": "tests/cluster/supervisor_test.py",
    "deploy/cli/report.cc": "tests/cluster/supervisor_test.py, attached and detached",
    "deploy/cli/supervisor.cc": "tests/cluster/supervisor_test.py: needs processes to watch",
    "deploy/cli/up.cc": "tests/cluster/supervisor_test.py",
}
# A test proves a claim: its name has at least two words, and none of these says anything.
EMPTY_NAMES = {"Basic", "BasicTest", "Simple", "SimpleTest", "Works", "ItWorks", "DoesItWork",
               "Sanity", "SanityCheck", "SmokeTest", "HappyPath", "TestCase", "GeneralTest"}
BAD_STEMS = {"utils", "util", "common", "misc", "helpers", "helper"}


class Report:
    def __init__(self):
        self.violations = []

    def add(self, path, line, rule, what):
        self.violations.append((str(path), line, rule, what))


def strip_cpp(text):
    """The text with comments, string contents and preprocessor lines blanked; same length."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'
        r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.S | re.M)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def line_of(text, index):
    return text.count("\n", 0, index) + 1


def block_kind(head):
    """What a '{' opens at namespace or class level, by the text before it."""
    head = re.sub(r"\balignas\s*\([^)]*\)", "", head.strip())
    if re.search(r"\bnamespace\b[^()=]*$", head) or re.fullmatch(r"extern\s*", head):
        return "scope"
    if re.search(r"\b(class|struct|union|enum)\b[^()=]*$", head):
        return "scope"
    if head.endswith(("=", ",", "(", "return")):
        return "init"
    return "function" if "(" in head or ")" in head else "init"


def functions(stripped):
    """Yields (first line, last line, head) of each function body in the stripped text."""
    stack = []
    head_start = 0
    for match in re.finditer(r"[{};]", stripped):
        index, char = match.start(), match.group()
        if char == "{":
            head = stripped[head_start:index]
            in_function = any(kind == "function" for kind, _, _ in stack)
            kind = "block" if in_function else block_kind(head)
            first = head_start + len(head) - len(head.lstrip())
            stack.append((kind, first, head))
        elif char == "}" and stack:
            kind, first, head = stack.pop()
            if kind == "function":
                yield line_of(stripped, first), line_of(stripped, index), head
        head_start = index + 1


class Tree:
    """The source files of the repository, read once."""

    def __init__(self, root):
        self.root = root
        self.files = {}
        for top in TOP_FOLDERS:
            for path in sorted((root / top).rglob("*")):
                relative = path.relative_to(root)
                if path.is_file() and not SKIPPED_FOLDERS & set(relative.parts):
                    if path.suffix in SOURCE or path.name in ("CMakeLists.txt", "README.md"):
                        self.files[relative.as_posix()] = path.read_text(errors="replace")
        self.stripped = {name: strip_cpp(text) for name, text in self.files.items()
                         if pathlib.PurePosixPath(name).suffix in CPP}


def check_sizes(tree, report):
    for name, text in tree.files.items():
        path = pathlib.PurePosixPath(name)
        lines = text.count("\n") + (not text.endswith("\n"))
        if path.suffix in SOURCE and lines > MAX_FILE_LINES:
            report.add(name, MAX_FILE_LINES + 1, "file-size",
                       f"{lines} lines, at most {MAX_FILE_LINES}: split it by what it does")
        most = README_LIMITS.get(str(name), MAX_README_LINES)
        if path.name == "README.md" and lines > most:
            report.add(name, most + 1, "readme-size", f"{lines} lines, at most {most}")
    root_list = tree.root / "CMakeLists.txt"
    if root_list.exists() and len(root_list.read_text().splitlines()) > MAX_ROOT_CMAKE_LINES:
        report.add("CMakeLists.txt", MAX_ROOT_CMAKE_LINES, "file-size",
                   f"at most {MAX_ROOT_CMAKE_LINES} lines")
    for name, stripped in tree.stripped.items():
        if stripped.count("{") != stripped.count("}"):
            report.add(name, 1, "braces", "braces do not match: functions cannot be measured")
            continue
        for first, last, head in functions(stripped):
            limit = MAX_FUNCTION_LINES
            if re.search(r"\b__global__\b|\b__device__\b", head):
                limit = MAX_KERNEL_LINES
            elif name.endswith("main.cc") and re.search(r"\bint\s+main\s*\(", head):
                limit = MAX_MAIN_LINES
            if last - first + 1 > limit:
                report.add(name, first, "function-size",
                           f"{last - first + 1} lines, at most {limit}")


def check_includes(tree, report):
    include = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)
    for name, text in tree.files.items():
        path = pathlib.PurePosixPath(name)
        if path.suffix not in CPP:
            continue
        folder = path.parent.as_posix()
        for match in include.finditer(text):
            target = match.group(1)
            line = line_of(text, match.start())
            if target.endswith((".pb.h", ".grpc.pb.h")):
                edge = folder == "common/rpc" or path.stem.endswith(("_service", "_service_test"))
                if not edge and not folder.startswith("tests/"):
                    report.add(name, line, "protobuf",
                               "generated types stop at common/rpc and the *_service files")
                continue
            target_folder = pathlib.PurePosixPath(target).parent.as_posix()
            is_sibling = f"{folder}/{target}" in tree.files and target not in tree.files
            if target.startswith((".", "/")) or is_sibling:
                report.add(name, line, "include-path", f'"{target}": include from the root')
            elif name.startswith("tests/") or target.split("/")[0] not in TOP_FOLDERS:
                continue
            elif folder not in EDGES:
                report.add(name, line, "include-edge",
                           f"{folder} has no entry in EDGES of tests/tidy/tidy.py")
                break
            elif target_folder != folder and target_folder not in BASE + EDGES[folder]:
                report.add(name, line, "include-edge", f"{folder} must not use {target_folder}")


def check_text(tree, report):
    for name, stripped in tree.stripped.items():
        path = pathlib.PurePosixPath(name)
        for token, pattern in BANNED.items():
            if (name, token) in BANNED_EXCEPTIONS:
                continue
            for match in pattern.finditer(stripped):
                report.add(name, line_of(stripped, match.start()), "banned",
                           f"{token}: inject it, or give a reason in BANNED_EXCEPTIONS")
        if path.suffix in (".h", ".cuh") and "#pragma once" not in tree.files[name]:
            report.add(name, 1, "pragma-once", "the header lacks #pragma once")
    for name in tree.files:
        stem = pathlib.PurePosixPath(name).stem
        if stem.removesuffix("_test").lower() in BAD_STEMS:
            report.add(name, 1, "file-name", f"{stem} says nothing: name it by what it holds")


def check_test_names(tree, report):
    test = re.compile(r"\bTEST(?:_F|_P)?\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)")
    for name in tree.stripped:
        if not name.startswith("tests/"):
            continue
        text = tree.stripped[name]
        for match in test.finditer(text):
            words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]*|\d+", match.group(2))
            if len(words) < 2 or match.group(2) in EMPTY_NAMES or words[0] == "Test":
                report.add(name, line_of(text, match.start()), "test-name",
                           f"{match.group(2)}: say what is claimed")
    for name, text in tree.files.items():
        if name.startswith("tests/") and name.endswith(".py"):
            for match in re.finditer(r"^\s+def (test_\w*)\(self", text, re.M):
                if match.group(1).count("_") < 3:
                    report.add(name, line_of(text, match.start()), "test-name",
                               f"{match.group(1)}: say what is claimed")


def test_candidates(name):
    """Where the test of a source file may stand."""
    stem = name.removesuffix(".cc").removesuffix(".cu")
    yield f"tests/unit/{stem}_test.cc"
    if name.startswith("kernels/"):
        # One op, one test body over every device: tests/kernels/OP_test.cc.
        yield f"tests/kernels/{pathlib.PurePosixPath(stem).name}_test.cc"
        yield f"tests/{stem}_test.cc"
    if name.startswith("common/transport/"):
        yield f"tests/transport/{pathlib.PurePosixPath(stem).name}_test.cc"


def check_tests_exist(tree, report):
    for name in tree.stripped:
        if not name.startswith(CODE_FOLDERS) or not name.endswith((".cc", ".cu")):
            continue
        has_test = any(candidate in tree.files for candidate in test_candidates(name))
        has_reason = name in UNTESTED or pathlib.PurePosixPath(name).name in UNTESTED
        if not has_test and not has_reason:
            report.add(name, 1, "no-test", f"no {next(test_candidates(name))}, and no reason in "
                                           "UNTESTED of tests/tidy/tidy.py")


def check_lists_are_true(tree, report):
    """An exception that nothing needs any more hides the next one."""
    here = "tests/tidy/tidy.py"
    for (name, token) in BANNED_EXCEPTIONS:
        if name in tree.stripped and not BANNED[token].search(tree.stripped[name]):
            report.add(here, 1, "stale-exception", f"{name} no longer uses {token}")
    for name in UNTESTED:
        if "/" in name and any(c in tree.files for c in test_candidates(name)):
            report.add(here, 1, "stale-exception", f"{name} has a test now")


# Compiled by another preset than release, with the reason.
NOT_IN_RELEASE = {
    "tests/cluster/tsan_abseil.cc": "tells the thread sanitizer of Abseil's locks",
}


def compiled_files(commands):
    """What is compiled, alone or as one of a batch that includes it."""
    for entry in json.loads(commands.read_text()):
        file = pathlib.Path(entry["file"])
        yield file.resolve()
        if file.name.startswith("unity_") and file.exists():
            for name in re.findall(r'^#include "(.*)"', file.read_text(), re.M):
                yield pathlib.Path(name).resolve()


def check_built(tree, build, report):
    """Every source file is compiled; the router links no kernels."""
    commands = build / "compile_commands.json"
    if not commands.exists():
        report.add(commands, 1, "not-built", "missing: configure first (cmake --preset release)")
        return
    compiled = set(compiled_files(commands))
    for name in tree.stripped:
        if name in NOT_IN_RELEASE:
            continue
        if name.endswith(".cc") and (tree.root / name).resolve() not in compiled:
            report.add(name, 1, "not-built", "no CMakeLists.txt builds this file")
    ninja = build / "build.ninja"
    if ninja.exists():
        link = re.search(r"^build bin/baton-router: .*\n(?:  .*\n)*", ninja.read_text(), re.M)
        kernels = re.search(r"LINK_LIBRARIES = .*libbaton_kernels\w*", link.group()) if link else None
        if kernels:
            report.add("router/CMakeLists.txt", 1, "router-kernels", "the router links kernels")


def run(root, build=None):
    tree = Tree(root)
    report = Report()
    for check in (check_sizes, check_includes, check_text, check_test_names, check_tests_exist,
                  check_lists_are_true):
        check(tree, report)
    if build:
        check_built(tree, build, report)
    return sorted(report.violations), len(tree.files)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--build", type=pathlib.Path)
    arguments = parser.parse_args()
    violations, num_files = run(arguments.root, arguments.build)
    for path, line, rule, what in violations:
        print(f"{path}:{line}: [{rule}] {what}")
    print(f"{num_files} files, {len(violations)} violations")
    return 1 if violations or not num_files else 0


if __name__ == "__main__":
    sys.exit(main())
