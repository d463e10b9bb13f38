#!/usr/bin/env python3
"""The threads of running processes are those of the table in ARCHITECTURE.md, section 3.

Usage: threads_test.py PATH_OF_BATON [unittest arguments]
"""
import json
import pathlib
import re
import sys
import time
import unittest

from running_cluster import RunningCluster

BATON = None
ARCHITECTURE = pathlib.Path(__file__).resolve().parents[2] / "ARCHITECTURE.md"
ROLES = ("router", "prefill", "decode")


def table():
    """Rows (names, whose) of the table of threads."""
    text = ARCHITECTURE.read_text()
    rows = text[text.index("| thread | of | made by |"):].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")]
             for row in rows if row.startswith("|")]
    return [(re.findall(r"`([^`]+)`", row[0]), row[1], row[0]) for row in cells]


def is_of(role, name, whose):
    if whose == "each its own":
        return name in (role, f"engine-{role}")
    return whose == "all" or role in whose or (role != "router" and "workers" in whose)


def documented(role, library):
    """The names that a process may have, of its own threads or of gRPC's."""
    return {name for names, whose, head in table() for name in names
            if head.startswith("gRPC") == library and is_of(role, name, whose)}


def running(pid):
    """Names of the process's threads but its first, which has the program's."""
    names = set()
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except OSError:  # It has just ended.
            continue
        if task.name != str(pid):
            names.add(name)
    return names


def own_of(pid, role):
    """Names of its threads that are not the library's. A new thread has its maker's name at first."""
    deadline = time.monotonic() + 60
    while True:
        names = running(pid) - documented(role, library=True)
        if names == documented(role, library=False) or time.monotonic() > deadline:
            return names
        time.sleep(0.1)


class ThreadsTest(unittest.TestCase):
    def test_processes_have_the_threads_of_the_table_and_no_others(self):
        with RunningCluster(BATON, "threads", threads=2, prefill=1, decode=1) as cluster:
            cluster.post("/v1/completions", model=cluster.model, prompt="In the", max_tokens=4)
            servers = json.loads((cluster.dir / "state.json").read_text())["servers"]
            self.assertEqual(sorted(s["role"] for s in servers), sorted(ROLES))
            for server in servers:
                role = server["role"]
                with self.subTest(role=role):
                    own = documented(role, library=False)
                    self.assertGreaterEqual(len(own), 3)
                    self.assertEqual(sorted(own_of(server["process"]["pid"], role)), sorted(own))


if __name__ == "__main__":
    BATON = sys.argv.pop(1)
    unittest.main(verbosity=2)
