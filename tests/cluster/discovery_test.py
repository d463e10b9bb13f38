#!/usr/bin/env python3
"""Workers that a router finds by name come and go while it answers: no request fails, whatever the
name says.

Runs in namespaces of its own: the name is `localhost`, and what it resolves to is a hosts file.

Usage: discovery_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import unittest
import urllib.request

from api_client import metric_sum
import network_namespaces
from process_cluster import MODEL, START_LIMIT_S, await_true

BIN = None
HTTP_PORT, OPS_PORT = 8000, 9090
METRICS = f"http://127.0.0.1:{OPS_PORT}/metrics"
PORT = {"prefill": 7000, "decode": 7100}
FORGET_LIMIT_S = 120  # It takes 30 s and a lookup.
INSIDE = "BATON_TEST_INSIDE"


def get(path, port=HTTP_PORT):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
        return answer.read().decode()


def complete(index):
    body = {"model": MODEL.name, "prompt": f"In the beginning {index % 5}", "max_tokens": 24,
            "temperature": 0}
    request = urllib.request.Request(f"http://127.0.0.1:{HTTP_PORT}/v1/completions",
                                     json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())["choices"][0]["text"]


class Load:
    """One client after the other, whose answers are known."""

    def __init__(self):
        self.known = {i: complete(i) for i in range(5)}
        self.failures = []
        self.count = 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopped.is_set():
            try:
                if (text := complete(self.count)) != self.known[self.count % 5]:
                    self.failures.append(f"answered {text!r}")
            except OSError as error:
                self.failures.append(repr(error))
            self.count += 1

    def check(self, test, more=5):
        """That many more requests have ended, and none has failed so far."""
        goal = self.count + more
        await_true(lambda: self.count >= goal or self.failures, 120, "requests end")
        test.assertEqual(self.failures, [])


class DiscoveryTest(unittest.TestCase):
    def setUp(self):
        if why := network_namespaces.why_not():
            raise unittest.SkipTest(why)
        self.folder = BIN.parent / "run" / "discovery"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.hosts = self.folder / "hosts"
        self.resolve_to()
        network_namespaces.run("ip", "link", "set", "lo", "up")
        subprocess.run(["mount", "--bind", self.hosts, "/etc/hosts"], check=True)
        self.processes = {}
        self.addCleanup(self.end)

    def end(self):
        for process in self.processes.values():
            process.kill()
            process.wait(10)
        subprocess.run(["umount", "/etc/hosts"], check=True)

    def resolve_to(self, *addresses):
        """In place: the router reads the file that was mounted."""
        self.hosts.write_text("".join(f"{address} localhost\n" for address in addresses))

    def launch(self, name, program, *arguments):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [BIN / program, "--model", MODEL, *(str(a) for a in arguments)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start_worker(self, role, host, port=None):
        self.launch(f"{role} {host}", f"baton-{role}", "--host", host, "--threads", 1,
                    "--num-blocks", 256, "--port", port or PORT[role], "--data-port", 0,
                    "--metrics-port", 0)

    def stop(self, name):
        process = self.processes.pop(name)
        process.terminate()
        self.assertEqual(process.wait(60), 0, name)

    def workers(self):
        """Addresses -> (healthy, reason) of what the router lists."""
        return {worker["address"]: (worker["healthy"], worker["reason"])
                for worker in json.loads(get("/status"))["workers"]}

    def await_workers(self, healthy, listed, seconds=START_LIMIT_S):
        def is_so():
            workers = self.workers()
            return (len(workers) == listed and
                    sorted(a for a, (is_healthy, _) in workers.items() if is_healthy) ==
                    sorted(healthy))
        await_true(is_so, seconds, lambda: f"the router has {self.workers()}", pause=0.1)

    def await_lookups(self, result):
        """Two more of each name."""
        def count(role):
            return metric_sum(METRICS, "baton_discovery_lookups_total",
                              role=role, result=result)
        before = {role: count(role) for role in PORT}
        for role in PORT:
            await_true(lambda role=role: count(role) >= before[role] + 2, 60, f"lookups: {result}",
                       pause=0.1)

    def test_workers_come_and_go_and_no_request_fails(self):
        both = lambda host: [f"{host}:{port}" for port in PORT.values()]  # noqa: E731
        for role in PORT:
            self.start_worker(role, "127.0.0.2")
        self.launch("router", "baton-router", "--http-port", HTTP_PORT, "--grpc-port", 0,
                    "--ops-port", OPS_PORT, "--prefill", f"dns:///localhost:{PORT['prefill']}",
                    "--decode", f"dns:///localhost:{PORT['decode']}")
        await_true(self.listens, START_LIMIT_S, "the router listens")
        self.await_lookups("failed")
        self.assertEqual(self.workers(), {})
        self.resolve_to("127.0.0.2")
        self.await_workers(both("127.0.0.2"), 2)
        await_true(lambda: metric_sum(METRICS, "baton_ready") == 1, 60, "ready")
        load = Load()

        # More workers, and an address of nobody. Then the name is gone: that says nothing.
        for role in PORT:
            self.start_worker(role, "127.0.0.3")
        self.resolve_to("127.0.0.2", "127.0.0.3", "127.0.0.9", "10.0.0.1")  # The last needs TLS.
        self.await_workers(both("127.0.0.2") + both("127.0.0.3"), 6)
        load.check(self)
        self.resolve_to()
        self.await_lookups("failed")
        self.await_workers(both("127.0.0.2") + both("127.0.0.3"), 6)

        # The first pair goes. Its addresses come back with another role, and are no worker.
        self.resolve_to("127.0.0.3")
        self.await_lookups("ok")
        self.await_workers(both("127.0.0.2") + both("127.0.0.3"), 6)  # Connected: they stay.
        for role in PORT:
            self.stop(f"{role} 127.0.0.2")
        load.check(self)
        self.start_worker("prefill", "127.0.0.2", PORT["decode"])
        await_true(lambda: "where a decode worker" in
                   self.workers().get(f"127.0.0.2:{PORT['decode']}", (0, ""))[1],
                   60, lambda: f"the role is refused: {self.workers()}")
        self.await_workers(both("127.0.0.3"), 2, FORGET_LIMIT_S)
        load.check(self)

        # Back, under indices that were used before.
        self.stop("prefill 127.0.0.2")
        for role in PORT:
            self.start_worker(role, "127.0.0.2")
        self.resolve_to("127.0.0.2", "127.0.0.3")
        self.await_workers(both("127.0.0.2") + both("127.0.0.3"), 4)
        load.check(self)
        load.stopped.set()
        load.thread.join(60)
        self.assertEqual(load.failures, [])
        self.assertEqual(metric_sum(METRICS, "baton_workers_forgotten_total"), 4)
        self.stop("router")

    def listens(self):
        self.assertIsNone(self.processes["router"].poll(),
                          (self.folder / "router.log").read_text())
        try:
            return get("/health", OPS_PORT)
        except OSError:
            return None


if __name__ == "__main__":
    if INSIDE not in os.environ and not network_namespaces.why_not():
        os.execvpe("unshare", ["unshare", "--net", "--mount", sys.executable, "-B", *sys.argv],
                   {**os.environ, INSIDE: "1"})
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
