#!/usr/bin/env python3
"""Book-keeping of run.sh.

executions.py count DIR            adds the executions in DIR/log/* to DIR/pending
executions.py keep MERGED CORPUS   makes CORPUS the smallest files of MERGED, named by their hash
executions.py table WORK TABLE     moves WORK/*/pending into the committed table
executions.py behind WORK TABLE TARGET...  prints those with fewer than GOAL, pending ones counted;
                                   all if none has
"""
import datetime
import hashlib
import math
import pathlib
import re
import sys

MAX_BYTES = 200_000
MAX_FILES = 150
GOAL = 10_000_000
HEAD = """# Executions of the fuzz targets

Summed over all runs of `run.sh`; findings are inputs that ended the process, each fixed and kept in
`corpus/TARGET/found-*`.

| target | executions | last run | findings |
|---|---:|---|---:|
"""


def executions_of(log):
    """The final statistics, or the last progress line of a process that was killed."""
    final = re.search(r"number_of_executed_units:\s+(\d+)", log)
    if final:
        return int(final.group(1))
    return max((int(n) for n in re.findall(r"^#(\d+)", log, re.M)), default=0)


def count(directory):
    pending = directory / "pending"
    before = int(pending.read_text()) if pending.exists() else 0
    for log in sorted((directory / "log").iterdir()):
        before += executions_of(log.read_text(errors="replace"))
        log.unlink()
    pending.write_text(f"{before}\n")


def keep(merged, corpus):
    for old in corpus.iterdir():
        if not old.name.startswith("found-"):
            old.unlink()
    total = sum(file.stat().st_size for file in corpus.iterdir())
    # Evenly over the sizes: the small ones reach little, the large ones all at once.
    files = sorted(merged.iterdir(), key=lambda f: (f.stat().st_size, f.name))
    step = max(1, math.ceil(len(files) / MAX_FILES))
    for file in files[::step]:
        data = file.read_bytes()
        total += len(data)
        if total > MAX_BYTES:
            break
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)


def read_table(path):
    text = path.read_text() if path.exists() else ""
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \| (\S+) \|", text, re.M)
    return {name: (int(runs.replace(",", "")), date) for name, runs, date in rows}


def table(work, path):
    rows = read_table(path)
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    for pending in sorted(work.glob("*/pending")):
        name = pending.parent.name
        rows[name] = (rows.get(name, (0, ""))[0] + int(pending.read_text()), today)
        pending.unlink()
    text = HEAD
    for name, (runs, date) in sorted(rows.items()):
        found = len(list((path.parent / "corpus" / name).glob("found-*")))
        text += f"| {name} | {runs:,} | {date} | {found} |\n"
    path.write_text(text)


def behind(work, path, *targets):
    rows = read_table(path)

    def total(target):
        pending = work / target / "pending"
        return rows.get(target, (0, ""))[0] + (
            int(pending.read_text()) if pending.exists() else 0)

    few = [target for target in map(str, targets) if total(target) < GOAL]
    return few or [str(target) for target in targets]


def main():
    command, *paths = sys.argv[1:]
    if command == "behind":
        print("\n".join(behind(pathlib.Path(paths[0]), pathlib.Path(paths[1]), *paths[2:])))
        return
    {"count": count, "keep": keep, "table": table}[command](*map(pathlib.Path, paths))


if __name__ == "__main__":
    main()
