#!/usr/bin/env python3
"""The threads of running processes are those of the table in ARCHITECTURE.md, section 3.

Usage: threads_test.py PATH_OF_BATON [unittest arguments]
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest

from running_cluster import MODEL, RunningCluster

BATON = None
LIMIT_S = 60
# There with certificates, a library, keys or names only.
OPTIONAL = {"nccl", "tls-watch", "key-watch", "api-tls-watch", "resolver"}
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


def own_of(pid, role, expected):
    """Names of its threads that are not the library's. A new thread has its maker's name at first."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        names = running(pid) - documented(role, library=True)
        if names == expected or time.monotonic() > deadline:
            return names
        time.sleep(0.1)


def has_emulated_gpus():
    done = subprocess.run([pathlib.Path(BATON).parent / "baton-decode", "--list-gpus"], timeout=60,
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])["build"] == "emulated"


class ThreadsTest(unittest.TestCase):
    def test_processes_have_the_threads_of_the_table_and_no_others(self):
        self.check_threads(set(), threads=4, tp=2)

    def test_one_rank_has_no_threads_of_others(self):
        self.check_threads(set(), threads=2)

    def test_the_emulated_gpu_is_a_thread_of_its_worker(self):
        if not has_emulated_gpus():
            self.skipTest("programs of another build")
        os.environ["BATON_EMULATED_GPU"] = "detector=off"
        self.addCleanup(os.environ.pop, "BATON_EMULATED_GPU", None)
        self.check_threads({"emulated-gpu"}, threads=2, device="cuda", num_blocks=64,
                           max_model_len=256, gpu_graphs="off")

    def test_certificates_keys_and_names_are_each_watched_by_a_thread(self):
        self.check_threads({"tls-watch"}, of_the_router={"tls-watch"}, threads=2, tls=True)
        certs = pathlib.Path(BATON).parents[1] / "run" / "threads" / "certs" / "router"
        keys, ready = certs.parent / "keys", certs.parent / "ready.json"
        subprocess.run([BATON, "keys", "add", keys, "somebody"], timeout=LIMIT_S,
                       capture_output=True, check=True)
        # It needs no workers, and finds none.
        router = subprocess.Popen(
            [pathlib.Path(BATON).parent / "baton-router", "--model", MODEL, "--prefill",
             "dns:///localhost:1", "--decode", "127.0.0.1:2", "--http-port", "0", "--grpc-port", "0",
             "--ready-file", ready, "--tls-dir", certs, "--api-keys-file", keys, "--api-tls-dir", certs],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            own = documented("router", library=False)
            self.assertLess(OPTIONAL - {"nccl"}, own)
            self.assertEqual(sorted(own_of(router.pid, "router", own)), sorted(own))
        finally:
            router.kill()
            router.wait(LIMIT_S)

    def check_threads(self, of_workers, of_the_router=frozenset(), **options):
        with RunningCluster(BATON, "threads", prefill=1, decode=1, **options) as cluster:
            cluster.post("/v1/completions", model=cluster.model, prompt="In the", max_tokens=4)
            servers = json.loads((cluster.dir / "state.json").read_text())["servers"]
            self.assertEqual(sorted(s["role"] for s in servers), sorted(ROLES))
            for server in servers:
                role = server["role"]
                with self.subTest(role=role):
                    own = documented(role, library=False)
                    own -= OPTIONAL
                    if options.get("tp", 1) == 1:
                        own = {name for name in own if not name.endswith("-rank")}
                    self.assertGreaterEqual(len(own), 3)
                    own |= of_the_router if role == "router" else of_workers
                    self.assertEqual(sorted(own_of(server["process"]["pid"], role, own)),
                                     sorted(own))


if __name__ == "__main__":
    BATON = sys.argv.pop(1)
    unittest.main(verbosity=2)
