#!/usr/bin/env python3
"""Compiles every kernel file with nvcc and reads what came out.

Usage: compile_gate.py [--keep DIR] [--fresh] [--verbose] [ARCHITECTURE...]   (default: the build's)
Flags are the build's own (kernels/cuda/nvcc_flags.txt). Fails on a compiler warning, on host code or
tests of devices that CUDA's own headers do not take, on a kernel that spills registers or has a
stack frame, on loads and stores of local memory in its machine code, and where an instruction that
machine_code.py wants is missing. Files *_sm90.cu are compiled for sm_90a alone. Exits 77, which ctest calls skipped, if there is no CUDA toolkit
and none can be fetched.
What has passed is not judged again: gate_memory.py knows it by all that it was made from.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import gate_memory
import machine_code

ROOT = pathlib.Path(__file__).resolve().parents[3]
KERNELS = ROOT / "kernels/cuda"
# Beside the toolkit of toolkit.sh.
CACHE = pathlib.Path(os.environ.get("BATON_CUDA_CACHE") or pathlib.Path(
    os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "baton") / "gate"

BUILD_FLAGS = [line for line in (KERNELS / "nvcc_flags.txt").read_text().splitlines()
               if line.startswith("-")]
FLAGS = [*(flag for flag in BUILD_FLAGS if not flag.startswith("-gencode")),
         "-Xptxas", "-v", "-Werror", "all-warnings", f"-I{ROOT}", "-cubin"]
ARCHITECTURES = re.findall(r"\bsm_\w+", " ".join(BUILD_FLAGS))

# Of host code that is no folder's own here.
GPU_REPORT = ROOT / "kernels/api/gpu_report.cc"

# ptxas has put waits or fences of its own between products that are to be in flight.
COMPILER_HELPS = re.compile(r"\(C75\d\d\).*")

# What a compiler that may fuse would fuse.
PRODUCT_AND_SUM = """
__global__ void ProductAndSum(float* x) { x[0] = x[1] * x[2] + x[3]; }
"""

# The smallest program of a build for devices.
LIST_GPUS = """
#include <cstdio>
#include "kernels/cuda/cuda_gpus.h"
int main() {
  const baton::GpuReport report = baton::ListCudaGpus();
  std::printf("%d GPUs, driver: %s %s\\n", static_cast<int>(report.gpus.size()),
              report.driver.c_str(), report.problem.c_str());
}
"""


def toolkit(script, limit_s):
    """The folder of the toolkit that `script` prints; skips the gate if there is none in time."""
    # A group of its own, so that what the script started ends with it.
    with subprocess.Popen([script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as found:
        try:
            home, errors = found.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(found.pid, signal.SIGTERM)  # It takes away what is half fetched.
            print(f"skipped: no CUDA toolkit: fetching one took more than {limit_s} s")
            sys.exit(77)
    if found.returncode != 0:
        print(f"skipped: no CUDA toolkit: {errors.strip()[-300:]}")
        sys.exit(77)
    return pathlib.Path(home.strip())


# Each check gives (problems, a line for each kernel).
def check_flags(home, folder):
    """What the build's flags make of a kernel."""
    source, made = folder / "flags.cu", folder / "flags.o"
    source.write_text(PRODUCT_AND_SUM)
    built = subprocess.run([home / "bin/nvcc", *BUILD_FLAGS, "-c", source, "-o", made],
                           capture_output=True, text=True, check=False)
    if built.returncode != 0:
        return [f"nvcc_flags.txt: {built.stdout}{built.stderr}"], []
    dump = lambda *what: subprocess.run([home / "bin/cuobjdump", *what, made], check=True,
                                        capture_output=True, text=True).stdout
    problems = [f"nvcc_flags.txt: no {part}" for part in ("sm_80.cubin", "sm_90a.cubin", "sm_80.ptx")
                if part not in dump("-lelf", "-lptx")]
    code = dump("-sass")
    if "FFMA" in code or "FMUL" not in code or "FADD" not in code:
        problems.append("nvcc_flags.txt: products and sums fuse")
    return problems, []


def tests_of_devices():
    """Those of each folder, and the benchmarks, which call CUDA themselves."""
    return [[source for source in sorted((ROOT / folder).glob("*.cc"))
             if word in source.read_text()]
            for folder, word in (("tests/kernels/cuda", "BATON_CUDA_DEVICE"),
                                 ("tests/gpu", "BATON_CUDA_DEVICE"), ("tests/gpu/bench", ""))]


def includes(sources):
    """A source of all of them: what they share is read once, as in the build's batches."""
    return "".join(f'#include "{source}"\n' for source in sources)


def check_tests(home, sources):
    """What tests have for devices only, and the headers that they share."""
    command = [*host_compiler(home), '-DBATON_SOURCE_DIR="."', "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, input=includes(sources), capture_output=True, text=True,
                          check=False)
    return [f"tests of devices: {done.stdout}{done.stderr}"] * (done.returncode != 0), []


def host_compiler(home):
    return [os.environ.get("CXX", "c++"), "-std=c++20", "-Wall", "-Wextra", "-Werror",
            "-Wno-missing-field-initializers", "-DBATON_CUDA_DEVICE=1", f"-I{ROOT}",
            "-isystem", home / "include"]


def check_host_code(home, folder):
    """The host's part with CUDA's own headers and library in place of the emulation's, and a program
    of it that starts here."""
    cxx = host_compiler(home)
    program, main, rest = folder / "list_gpus", folder / "list_gpus.cc", folder / "others.cc"
    listing = [KERNELS / "cuda_gpus.cc", KERNELS / "cuda_status.cc", GPU_REPORT]
    main.write_text(includes(listing) + LIST_GPUS)
    rest.write_text(includes(sorted(set(KERNELS.glob("*.cc")) - set(listing))))
    libraries = [home / "lib64/libcudart_static.a", "-labsl_status", "-labsl_statusor",
                 "-labsl_strings", "-labsl_raw_logging_internal", "-labsl_cord", "-ldl", "-lrt",
                 "-lpthread"]
    for command in ([*cxx, "-fsyntax-only", rest], [*cxx, main, "-o", program, *libraries],
                    [program]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return [f"host code: {done.stdout}{done.stderr}"], []
    # Without a driver it says so, and does not fail to start.
    says = done.stdout.strip()
    return [f"host code: list_gpus says {says!r}"] * ("driver" not in says), []


def demangle(names):
    names = list(names)
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True,
                         check=True).stdout.splitlines()
    return dict(zip(names, out))


def resources(log):
    """Kernel -> (registers, bytes of stack frame, bytes of spills), from ptxas -v."""
    out = {}
    for entry in re.split(r"(?=ptxas info\s*: Compiling entry function)", log)[1:]:
        name = re.search(r"entry function '(\w+)'", entry).group(1)
        stack, stores, loads = map(int, re.search(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
            entry).groups())
        registers = int(re.search(r"Used (\d+) registers", entry).group(1))
        out[name] = (registers, stack, stores + loads)
    return out


def instructions(sass):
    """Kernel -> the text of its machine code."""
    out = {}
    for part in re.split(r"\n\s*Function : ", sass)[1:]:
        name, _, code = part.partition("\n")
        out[name.strip()] = code
    return out


def check(home, source, architecture, folder):
    """One file's kernels."""
    cubin = folder / f"{source.stem}.{architecture}.cubin"
    nvcc = [home / "bin/nvcc", *FLAGS, f"-arch={architecture}", source, "-o", cubin]
    built = subprocess.run(nvcc, capture_output=True, text=True, check=False)
    where = f"{source.name} {architecture}"
    if built.returncode != 0:
        return [f"{where}: does not compile:\n{built.stdout}{built.stderr}"], []
    code = instructions(subprocess.run([home / "bin/cuobjdump", "-sass", cubin], check=True,
                                       capture_output=True, text=True).stdout)
    used = resources(built.stdout + built.stderr)
    names = demangle(used)
    problems = [f"{where}: {line}" for line in COMPILER_HELPS.findall(built.stdout + built.stderr)]
    lines = []
    for mangled, (registers, stack, spills) in sorted(used.items()):
        name = names[mangled]
        lines.append(f"{where}: {registers:3} registers  {name}")
        if stack or spills:
            problems.append(f"{where}: {name}: {stack} bytes of stack, {spills} of spills")
        text = code.get(mangled, "")
        if not text:
            problems.append(f"{where}: {name}: cuobjdump shows no code")
        if re.search(r"\b(LDL|STL)\b", text):
            problems.append(f"{where}: {name}: uses local memory")
        problems += [f"{where}: {name}: {problem}" for problem in
                     machine_code.missing(name, text)
                     + machine_code.too_many_registers(name, registers)]
    if not used:
        problems.append(f"{where}: no kernel in it")
    return problems, lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("architectures", nargs="*", default=ARCHITECTURES)
    parser.add_argument("--keep", type=pathlib.Path, help="leave the cubins here")
    parser.add_argument("--fresh", action="store_true", help="judge also what has passed")
    parser.add_argument("--toolkit", default=KERNELS / "toolkit.sh",
                        help="prints the toolkit's folder")
    parser.add_argument("--fetch-limit", type=float, default=300, help="seconds for that")
    parser.add_argument("--verbose", action="store_true", help="print every kernel's registers")
    arguments = parser.parse_args()
    home = toolkit(arguments.toolkit, arguments.fetch_limit)
    sources = [*sorted(KERNELS.glob("*.cu")), *sorted((ROOT / "tests/gpu").rglob("*.cu"))]
    # What is to be left in a folder has to be made.
    memory = gate_memory.Memory(None if arguments.fresh or arguments.keep else CACHE,
                                gate_memory.tools(home, host_compiler(home)[0]))
    problems, lines = [], []
    with tempfile.TemporaryDirectory() as scratch, \
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = arguments.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)

        def judge(made_from, check_one, *rest):
            return pool.submit(memory.judge, [check_one.__name__, *BUILD_FLAGS, *made_from],
                               lambda: check_one(home, *rest))

        # What takes long first: at the end no core waits for the others.
        tasks = [judge([architecture, *gate_memory.files_of(source)], check, source, architecture,
                       folder)
                 for source in sorted(sources, key=lambda file: -file.stat().st_size)
                 for architecture in arguments.architectures
                 if architecture == "sm_90a" or not source.stem.endswith("_sm90")]
        tasks += [judge([file for source in [*sorted(KERNELS.glob("*.cc")), GPU_REPORT]
                         for file in gate_memory.files_of(source)], check_host_code, folder),
                  judge([], check_flags, folder)]
        tasks += [judge([file for source in tests for file in gate_memory.files_of(source)],
                        check_tests, tests) for tests in tests_of_devices()]
        for task in tasks:
            found, kernels = task.result()
            problems += found
            lines += kernels
    if arguments.verbose:
        print("\n".join(lines))
    print("\n".join(problems))
    print(f"{len(sources)} files, {len(lines)} kernels, {len(problems)} problems; "
          f"{memory.reused} of {len(tasks)} judgements are those of earlier runs")
    return 1 if problems or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
