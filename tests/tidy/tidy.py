#!/usr/bin/env python3
"""Checks that the tree keeps its own rules (ARCHITECTURE.md, tests/tidy/README.md).

Usage: tidy.py [--root DIR] [--build DIR]
Prints one line per violation, "file:line: [rule] what", and exits 1 if there is any.
Standard library only; seconds to run.
"""
import argparse
import ast
import dataclasses
import json
import pathlib
import posixpath
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from bounds import check_bounds, check_invariants  # noqa: E402
from braces import check_braces  # noqa: E402
from citations import check_citations  # noqa: E402
from exceptions import BANNED_EXCEPTIONS, SERVES_GRPC, UNTESTED  # noqa: E402

MAX_FILE_LINES, MAX_FUNCTION_LINES = 500, 70
WIDE = re.compile(r"^.{101}", re.M)
MAX_KERNEL_LINES, MAX_MAIN_LINES = 150, 60
MAX_README_LINES = 30
README_LIMITS = {"kernels/README.md": 90}  # Table and programs.
MAX_ROOT_CMAKE_LINES = 150

TOP_FOLDERS = ("proto", "common", "kernels", "prefill_worker", "decode_worker", "router", "deploy",
               "tests")
CODE_FOLDERS = tuple(f for f in TOP_FOLDERS if f != "tests")
PATHS = tuple(f"{folder}/" for folder in TOP_FOLDERS)
SKIPPED_FOLDERS = {"build", "target", ".git", "__pycache__", "third_party"}
CPP = {".cc", ".h", ".cu", ".cuh"}
SOURCE = CPP | {".py", ".rs", ".sh"}
READ = SOURCE | {".md", ".proto", ".cmake"}
DOCUMENTED = tuple(SOURCE | {".proto", ".md"})  # What a document may name without a folder.
HERE = "tests/tidy/tidy.py"

# Which folders each folder includes, beside itself and what stands in BASE. Dependencies point down
# only; an edge that nothing uses is removed, so this is also the picture of the tree.
BASE = ["common/base"]
EDGES = {
    "common/base": [],
    "common/checkpoint": [], "common/collective": ["kernels/api"],
    "common/engine": ["common/kv_cache", "common/model", "common/node"],
    "common/http": [],
    "common/kv_cache": ["kernels/api"],
    "common/model": ["common/checkpoint", "common/collective", "common/kv_cache", "kernels/api"],
    "common/node": ["common/kv_cache", "common/model", "common/transport"],
    "common/process": [],
    "common/rpc": ["common/node", "common/telemetry", "common/tls", "common/transport"],
    "common/telemetry": [],
    "common/tls": [],
    "common/transport": ["common/kv_cache", "kernels/api"],
    "common/transport/nccl": ["common/kv_cache", "common/transport", "kernels/api"],
    "common/transport/tcp": ["common/transport"],
    "common/worker": ["common/checkpoint", "common/engine", "common/http", "common/kv_cache",
                      "common/model", "common/node", "common/process", "common/rpc",
                      "common/telemetry", "common/transport", "common/transport/nccl",
                      "common/transport/tcp", "kernels",
                      "kernels/api"],
    "decode_worker": ["common/engine", "common/kv_cache", "common/node", "common/process",
                      "common/transport", "common/worker"],
    "deploy/cli": ["common/node", "common/process", "common/rpc", "common/telemetry", "common/tls",
                   "common/transport/nccl", "router"],  # Of the router the file of API keys.
    # make_device: the one place that knows them all.
    "kernels": ["kernels/api", "kernels/cpu", "kernels/cuda", "kernels/emulation"],
    "kernels/api": [],
    "kernels/cpu": ["kernels/api", "kernels/cpu/sampling"],
    "kernels/cpu/sampling": ["kernels/api"],
    "kernels/cuda": ["kernels/api", "kernels/emulation"],  # dialect.h, where nvcc does not compile.
    "kernels/emulation": [],
    "kernels/emulation/nccl": ["kernels/emulation"],
    "prefill_worker": ["common/engine", "common/kv_cache", "common/node", "common/process",
                       "common/transport", "common/worker"],
    "router": ["common/checkpoint", "common/http", "common/node", "common/process", "common/rpc",
               "common/telemetry", "common/tls", "router/front", "router/generation",
               "router/openai", "router/routing",
               "router/text"],
    "router/front": ["common/http", "common/telemetry"],
    "router/generation": ["common/checkpoint", "common/node", "router", "router/text"],
    "router/openai": ["common/http", "router", "router/generation"],
    "router/routing": [],
    "router/text": [],
}

BANNED = {
    "::now(": re.compile(r"::now\(|\b(?:gpr_now|std::time|clock_gettime|gettimeofday)\("),
    "sleep_for": re.compile(r"\bsleep_for\b"),
    "std::thread": re.compile(r"\b(?:std::thread|std::async|asio::thread_pool)\b(?!::)"),
    "std::jthread": re.compile(r"\bstd::jthread\b(?!::)"),
    "random_device": re.compile(r"\brandom_device\b"),
    "getenv": re.compile(r"\bgetenv\b"),
}
# Allowed in tests, which may have a peer on a thread of its own that joins itself.
BANNED_IN_PRODUCT = {"std::jthread"}
# A test proves a claim: its name has at least two words, and none of these says anything.
EMPTY_NAMES = {"Basic", "BasicTest", "Simple", "SimpleTest", "Works", "ItWorks", "DoesItWork",
               "Sanity", "SanityCheck", "SmokeTest", "HappyPath", "TestCase", "GeneralTest"}
BAD_STEMS = {"utils", "util", "common", "misc", "helpers", "helper"}


# Compiled by another preset than emulated, which has all that is tested, with the reason.
NOT_IN_EMULATED = {
    "tests/cluster/tsan_abseil.cc": "tells the thread sanitizer of Abseil's locks",
}


@dataclasses.dataclass
class Lists:
    """What is allowed by name; the tests bring their own."""
    edges: dict = dataclasses.field(default_factory=lambda: EDGES)
    banned_exceptions: dict = dataclasses.field(default_factory=lambda: BANNED_EXCEPTIONS)
    untested: dict = dataclasses.field(default_factory=lambda: UNTESTED)
    readme_limits: dict = dataclasses.field(default_factory=lambda: README_LIMITS)
    not_in_emulated: dict = dataclasses.field(default_factory=lambda: NOT_IN_EMULATED)
    serves_grpc: dict = dataclasses.field(default_factory=lambda: SERVES_GRPC)


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
        self.names = set()  # Of everything, folders and what is not read included.
        for top in TOP_FOLDERS:
            for path in sorted((root / top).rglob("*")):
                relative = path.relative_to(root)
                if path.is_file() and not SKIPPED_FOLDERS & set(relative.parts):
                    self.names.add(relative.as_posix())
                    self.names.update(folder.as_posix() for folder in relative.parents)
                    if path.suffix in READ or path.name == "CMakeLists.txt":
                        self.files[relative.as_posix()] = path.read_text(errors="replace")
        for path in root.glob("*.md"):
            self.names.add(path.name)
            self.files[path.name] = path.read_text()
        self.stripped = {name: strip_cpp(text) for name, text in self.files.items()
                         if pathlib.PurePosixPath(name).suffix in CPP}


def check_sizes(tree, lists, report):
    for name, text in tree.files.items():
        path = pathlib.PurePosixPath(name)
        lines = text.count("\n") + (not text.endswith("\n"))
        if path.suffix in SOURCE and lines > MAX_FILE_LINES:
            report.add(name, MAX_FILE_LINES + 1, "file-size",
                       f"{lines} lines, at most {MAX_FILE_LINES}: split it by what it does")
        for wide in WIDE.finditer(text if path.suffix in CPP | {".proto"} else ""):
            report.add(name, line_of(text, wide.start()), "columns", "at most 100")
        most = lists.readme_limits.get(name, MAX_README_LINES)
        if path.name == "README.md" and name != "README.md" and lines > most:
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


INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.M)


def includes(tree):
    """Yields (file, line, what it includes) of everything included by a path in quotes."""
    for name, text in tree.files.items():
        if pathlib.PurePosixPath(name).suffix in CPP:
            for match in INCLUDE.finditer(text):
                yield name, line_of(text, match.start()), match.group(1)


def check_includes(tree, lists, report):
    used = set()
    for name, line, target in includes(tree):
        path = pathlib.PurePosixPath(name)
        folder = path.parent.as_posix()
        target_folder = pathlib.PurePosixPath(target).parent.as_posix()
        if target.endswith(".pb.h"):
            is_edge = folder == "common/rpc" or name in lists.serves_grpc
            if not is_edge and not folder.startswith("tests/"):
                report.add(name, line, "protobuf",
                           "generated types stop at common/rpc and what SERVES_GRPC names")
        elif target.startswith((".", "/")) or (f"{folder}/{target}" in tree.files and
                                               target not in tree.files):
            report.add(name, line, "include-path", f'"{target}": include from the root')
        elif target.split("/")[0] not in TOP_FOLDERS:
            continue
        elif target not in tree.names:
            report.add(name, line, "missing-file", f'"{target}" is not in the tree')
        elif name.startswith("tests/") or target_folder == folder:
            continue
        elif folder not in lists.edges:
            report.add(name, line, "include-edge", f"{folder} has no entry in EDGES of {HERE}")
        elif target_folder not in BASE + lists.edges[folder]:
            report.add(name, line, "include-edge", f"{folder} must not use {target_folder}")
        used.add((folder, target_folder))
    for folder, targets in lists.edges.items():
        for target in targets:
            if (folder, target) not in used or target in BASE:
                report.add(HERE, 1, "unused-edge", f"nothing in {folder} includes {target}")


def check_text(tree, lists, report):
    for name, stripped in tree.stripped.items():
        path = pathlib.PurePosixPath(name)
        for token, pattern in BANNED.items():
            if (name, token) in lists.banned_exceptions or (token in BANNED_IN_PRODUCT and
                                                            name.startswith("tests/")):
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


def check_test_names(tree, _, report):
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


def check_tests_exist(tree, lists, report):
    for name in tree.stripped:
        if not name.startswith(CODE_FOLDERS) or not name.endswith((".cc", ".cu")):
            continue
        has_test = any(candidate in tree.files for candidate in test_candidates(name))
        has_reason = name in lists.untested or name.rpartition("/")[2] in lists.untested
        if not has_test and not has_reason:
            report.add(name, 1, "no-test", f"no {next(test_candidates(name))}, and no reason in "
                                           "UNTESTED of tests/tidy/exceptions.py")


def check_lists_are_true(tree, lists, report):
    """An exception that nothing needs any more hides the next one."""
    for (name, token) in lists.banned_exceptions:
        if name in tree.stripped and not BANNED[token].search(tree.stripped[name]):
            report.add(HERE, 1, "stale-exception", f"{name} no longer uses {token}")
    for name in lists.untested:
        if "/" in name and any(c in tree.files for c in test_candidates(name)):
            report.add(HERE, 1, "stale-exception", f"{name} has a test now")
        elif "/" not in name and not any(f.endswith(f"/{name}") for f in tree.files):
            report.add(HERE, 1, "missing-file", f"no {name} is in the tree")
    for name in lists.readme_limits:
        if name in tree.files and tree.files[name].count("\n") <= MAX_README_LINES:
            report.add(HERE, 1, "stale-exception", f"{name} needs no limit of its own")
    for name in lists.serves_grpc:
        if name in tree.files and '.grpc.pb.h"' not in tree.files[name]:
            report.add(HERE, 1, "stale-exception", f"{name} serves no gRPC")
    named = [name for name, _ in lists.banned_exceptions] + list(lists.readme_limits)
    named += [name for name in lists.untested if "/" in name]
    named += list(lists.not_in_emulated) + list(lists.serves_grpc)
    for name in named + list(lists.edges):
        if name not in tree.names:
            report.add(HERE, 1, "missing-file", f"{name} is in a list and not in the tree")


def check_keys(tree, _, report):
    """Of two equal keys Python keeps the last and says nothing."""
    for name, text in tree.files.items():
        if not name.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(text)):
            keys = [ast.dump(key) for key in node.keys if key] if isinstance(node, ast.Dict) else []
            for key in sorted({key for key in keys if keys.count(key) > 1}):
                report.add(name, node.lineno, "duplicate-key", key)


CITED = re.compile(r"[\w./-]*\w\.md\b")
NAMED = re.compile(r"`(\w[\w./-]*\w)/?`")
LINK = re.compile(r"\]\((?!#)([^)#\s]+)")
# A path that a formatter for C++ took for arithmetic.
TORN = re.compile(r"`(?:[\w.]+ / )+[\w. ]+`")


def check_documents(tree, _, report):
    """A document that is named anywhere exists, and what a document names or links to."""
    endings = {"/".join(parts[i:]) for parts in (name.split("/") for name in tree.names)
               for i in range(len(parts))}
    for name, text in tree.files.items():
        folder = posixpath.dirname(name)
        text = re.sub(r"https?://\S+", lambda m: " " * len(m.group()), text)
        named = {(m.start(), m.group()) for m in CITED.finditer(text)}
        links = []
        if name.endswith(".md"):
            named |= {(m.start(1), m.group(1)) for m in NAMED.finditer(text)
                      if m.group(1).endswith(DOCUMENTED) or m.group(1).startswith(PATHS)}
            links = [(m.start(), m.group(1)) for m in LINK.finditer(text)]
        missing = [(at, target) for at, target in named
                   if posixpath.normpath(target).strip("./") not in endings]
        missing += [(at, target) for at, target in links
                    if posixpath.normpath(posixpath.join(folder, target)) not in tree.names]
        for at, target in sorted(missing):
            report.add(name, line_of(text, at), "missing-file", f"{target} is not in the tree")


def check_formatted(tree, _, report):
    """A formatter for C++ that went over a document tears its paths."""
    for name, text in tree.files.items():
        for match in TORN.finditer(text) if name.endswith(".md") else ():
            report.add(name, line_of(text, match.start()), "torn-path", match.group())


def compiled_files(commands):
    """What is compiled, alone or as one of a batch that includes it."""
    for entry in json.loads(commands.read_text()):
        file = pathlib.Path(entry["file"])
        yield file.resolve()
        if file.name.startswith("unity_") and file.exists():
            for name in re.findall(r'^#include "(.*)"', file.read_text(), re.M):
                yield pathlib.Path(name).resolve()


def check_built(tree, lists, build, report):
    """Every source file is compiled; the router links no kernels."""
    commands = build / "compile_commands.json"
    if not commands.exists():
        report.add(commands, 1, "not-built", "missing: configure first (cmake --preset emulated)")
        return
    compiled = set(compiled_files(commands))
    for name in tree.stripped:
        is_compiled = (tree.root / name).resolve() in compiled
        if name in lists.not_in_emulated or name.rpartition("/")[0] in lists.not_in_emulated:
            if is_compiled:
                report.add(HERE, 1, "stale-exception", f"{name} is compiled by the preset emulated now")
        elif name.endswith(".cc") and not is_compiled:
            report.add(name, 1, "not-built", "no CMakeLists.txt builds this file")
    ninja = build / "build.ninja"
    if ninja.exists():
        link = re.search(r"^build bin/baton-router: .*\n(?:  .*\n)*", ninja.read_text(), re.M)
        kernels = re.search(r"LINK_LIBRARIES = .*libbaton_kernels(?!_api)\w*", link.group()) if link else None
        if kernels:
            report.add("router/CMakeLists.txt", 1, "router-kernels", "the router links kernels")


def run(root, build=None, lists=None):
    tree = Tree(root)
    report = Report()
    lists = lists or Lists()
    for check in (check_sizes, check_includes, check_text, check_braces, check_test_names,
                  check_tests_exist, check_lists_are_true, check_keys, check_documents,
                  check_citations, check_formatted, check_bounds, check_invariants):
        check(tree, lists, report)
    if build:
        check_built(tree, lists, build, report)
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
