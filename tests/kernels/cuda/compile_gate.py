#!/usr/bin/env python3
"""Compiles every kernel file with nvcc and reads what came out.

Usage: compile_gate.py [--keep DIR] [--verbose] [ARCHITECTURE...]   (default: sm_80 sm_90)
Fails on a compiler warning, on a kernel that spills registers or has a stack frame, on loads and
stores of local memory in its machine code, and where an instruction of PROMISED is missing. Exits
77, which ctest calls skipped, if there is no CUDA toolkit and none can be fetched.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
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


def toolkit():
    found = subprocess.run([KERNELS / "toolkit.sh"], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        print(f"skipped: no CUDA toolkit: {found.stderr.strip()[-300:]}")
        sys.exit(77)
    return pathlib.Path(found.stdout.strip())


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
    parser.add_argument("architectures", nargs="*", default=["sm_80", "sm_90"])
    parser.add_argument("--keep", type=pathlib.Path, help="leave the cubins here")
    parser.add_argument("--verbose", action="store_true", help="print every kernel's registers")
    arguments = parser.parse_args()
    home = toolkit()
    sources = sorted(KERNELS.glob("*.cu"))
    problems, lines = [], []
    with tempfile.TemporaryDirectory() as scratch, \
            concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = arguments.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        tasks = [pool.submit(check, home, source, architecture, folder)
                 for source in sources for architecture in arguments.architectures]
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
