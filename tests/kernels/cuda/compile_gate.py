#!/usr/bin/env python3
"""Compiles every kernel file with nvcc and reads what came out.

Usage: compile_gate.py [--keep DIR] [--verbose] [ARCHITECTURE...]   (default: sm_80 sm_90a)
Fails on a compiler warning, on host code that CUDA's own headers do not take, on a kernel that spills registers or has a stack frame, on loads and
stores of local memory in its machine code, and where an instruction of PROMISED is missing. Exits
77, which ctest calls skipped, if there is no CUDA toolkit and none can be fetched.
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

ROOT = pathlib.Path(__file__).resolve().parents[3]
KERNELS = ROOT / "kernels/cuda"

# What the machine code of a kernel, named by a part of its name, must contain: products on tensor
# cores, copies that bypass registers, matrices loaded as fragments.
PROMISED = {
    "GemmKernel": ("HMMA.16816.F32", "LDGSTS", "LDSM"),
    "AttentionKernel": ("HMMA.16816.F32", "LDGSTS", "LDSM"),
}
FLAGS = ["-std=c++20", "-O3", "-fmad=false", "-lineinfo", "-Xptxas", "-v", "-Werror",
         "all-warnings", f"-I{ROOT}", "-cubin"]

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


def check_host_code(home, folder):
    """The problems of the host's part with CUDA's own headers and library in place of the
    emulation's, and of a program of it that starts here."""
    cxx = [os.environ.get("CXX", "c++"), "-std=c++20", "-Wall", "-Wextra", "-Werror",
           "-Wno-missing-field-initializers", "-DBATON_CUDA_DEVICE=1", f"-I{ROOT}",
           "-isystem", home / "include"]
    program = folder / "list_gpus"
    main = folder / "list_gpus.cc"
    main.write_text(LIST_GPUS)
    listing = [KERNELS / "cuda_gpus.cc", KERNELS / "cuda_status.cc", main]
    others = sorted(set(KERNELS.glob("*.cc")) - set(listing))
    libraries = [home / "lib64/libcudart_static.a", "-labsl_status", "-labsl_statusor",
                 "-labsl_strings", "-labsl_raw_logging_internal", "-labsl_cord", "-ldl", "-lrt",
                 "-lpthread"]
    for command in ([*cxx, "-fsyntax-only", *others], [*cxx, *listing, "-o", program, *libraries],
                    [program]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return [f"host code: {done.stdout}{done.stderr}"]
    # Without a driver it says so, and does not fail to start.
    says = done.stdout.strip()
    print(f"list_gpus: {says}")
    return [] if "driver" in says else [f"host code: list_gpus says {says!r}"]


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
    """The problems of one file, and a line for each kernel."""
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
    problems, lines = [], []
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
        for part, promised in PROMISED.items():
            if part not in name:
                continue
            problems += [f"{where}: {name}: no {instruction}" for instruction in promised
                         if instruction not in text]
    if not used:
        problems.append(f"{where}: no kernel in it")
    return problems, lines


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("architectures", nargs="*", default=["sm_80", "sm_90a"])
    parser.add_argument("--keep", type=pathlib.Path, help="leave the cubins here")
    parser.add_argument("--toolkit", default=KERNELS / "toolkit.sh",
                        help="prints the toolkit's folder")
    parser.add_argument("--fetch-limit", type=float, default=300, help="seconds for that")
    parser.add_argument("--verbose", action="store_true", help="print every kernel's registers")
    arguments = parser.parse_args()
    home = toolkit(arguments.toolkit, arguments.fetch_limit)
    sources = sorted(KERNELS.glob("*.cu"))
    problems, lines = [], []
    with tempfile.TemporaryDirectory() as scratch, \
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = arguments.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        tasks = [pool.submit(check, home, source, architecture, folder)
                 for source in sources for architecture in arguments.architectures]
        problems += check_host_code(home, folder)
        for task in tasks:
            found, kernels = task.result()
            problems += found
            lines += kernels
    if arguments.verbose:
        print("\n".join(lines))
    print("\n".join(problems))
    print(f"{len(sources)} files, {len(lines)} kernels, {len(problems)} problems")
    return 1 if problems or not lines else 0


if __name__ == "__main__":
    sys.exit(main())
