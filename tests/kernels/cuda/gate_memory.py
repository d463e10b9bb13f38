"""Which judgements of the compile gate need not be made again: those that passed, by a digest of all
that they come from, which are the files of this tree that a source includes, the flags, the gate's
own scripts, the CUDA toolkit, the compiler and the headers of the system. What failed is forgotten.
"""
import hashlib
import json
import os
import pathlib
import re
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCRIPTS = [ROOT / "tests/kernels/cuda" / name
           for name in ("compile_gate.py", "gate_memory.py", "machine_code.py")]
KEPT_S = 30 * 86400.0  # Since it was last of use.

# The headers of the system that host code includes come in packages, of which these are a part.
OF_THE_SYSTEM = "#include <gmock/gmock.h>\n#include <absl/status/statusor.h>\n"


def files_of(source, root=ROOT):
    """`source` and the files of the tree that it includes, and they, in order of their names."""
    found, open_files = set(), [pathlib.Path(source)]
    while open_files:
        file = open_files.pop()
        if file in found:
            continue
        found.add(file)
        for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read_text(), re.M):
            open_files += [path for path in (root / name, file.parent / name) if path.is_file()]
    return sorted(found)


def digest(*parts):
    """Of texts, and of files with their names in the tree."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, pathlib.Path):
            name = part.relative_to(ROOT) if part.is_relative_to(ROOT) else part.name
            part = f"{name}\n{part.read_text()}"
        total.update(f"{len(part)}\n{part}".encode())
    return total.hexdigest()


def tools(home, cxx):
    """What the toolkit and the host's compiler are, with its libraries' headers, and the gate."""
    says = [subprocess.run([program, "--version"], capture_output=True, text=True,
                           check=False).stdout
            for program in (home / "bin/nvcc", home / "bin/cuobjdump", cxx)]
    headers = subprocess.run([cxx, "-std=c++20", "-E", "-P", "-x", "c++", "-"],
                             input=OF_THE_SYSTEM, capture_output=True, text=True, check=False)
    return digest(str(home), *says, headers.stdout, *SCRIPTS)


class Memory:
    """Passes, each a small file in `folder`, where there is one."""

    def __init__(self, folder, tools_digest):
        self.folder = folder
        self.tools = tools_digest
        self.reused = 0
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for file in folder.iterdir():
            if file.stat().st_mtime < time.time() - KEPT_S:
                file.unlink(missing_ok=True)

    def judge(self, made_from, judge):
        """What judge() says: (problems, lines). Of what passed once, what it said then."""
        if self.folder is None:
            return judge()
        file = self.folder / digest(self.tools, *made_from)
        try:
            lines = json.loads(file.read_text())
            os.utime(file)
            self.reused += 1
            return [], lines
        except (OSError, ValueError):
            pass  # None, or one that was cut short.
        problems, lines = judge()
        if not problems:
            half = file.with_suffix(f".{os.getpid()}")
            half.write_text(json.dumps(lines))
            half.rename(file)
        return problems, lines
