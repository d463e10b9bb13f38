#!/usr/bin/env python3
"""`baton audit` on a running cluster: owners are found, and what has none is named.

Usage: audit_test.py PATH_OF_BATON [unittest arguments]
"""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

from process_cluster import await_true
from running_cluster import MODEL, RunningCluster

BATON = None
# Long enough to be looked at while it runs.
LONG = dict(prompt="And it came to pass", max_tokens=1500, n=64, ignore_eos=True)


@contextlib.contextmanager
def second_router(cluster):
    """A router that the cluster's own knows nothing of, on the same workers; its URL."""
    ready = cluster.dir / "second-router.json"
    ready.unlink(missing_ok=True)
    command = [cluster.baton_path.parent / "baton-router", "--model", MODEL, "--http-port", "0",
               "--grpc-port", "0", "--ready-file", ready]
    for worker in cluster.workers():
        command += ["--" + worker["role"], worker["address"]]
    with open(cluster.dir / "logs" / "second-router.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield json.loads(ready.read_text())["http_url"]
    finally:
        process.kill()
        process.wait()


class AuditTest(unittest.TestCase):
    def audit_in_words(self, cluster, *arguments):
        """What an audit ended with. On a busy machine a server may answer too late (2): once more."""
        for _ in range(10):
            done = cluster.baton("audit", *arguments, check=False)
            if done.returncode != 2:
                break
        return done

    def audit(self, cluster, *arguments):
        done = self.audit_in_words(cluster, "--json", *arguments)
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    def audit_of_decoding(self, cluster):
        """Once a decode worker goes on with the request, whose first token was the prefill's."""
        def audit():
            code, report = self.audit(cluster)
            calls = [call for worker in report["workers"] for call in worker["calls"]]
            pairs = [(call["state"], call["owner"]) for call in calls]
            return (code, report, calls) if ("RUNNING", "DECODING") in pairs else None
        return await_true(audit, 60, "a call is decoding")

    def test_every_block_in_use_has_its_router_as_owner(self):
        with RunningCluster(BATON, "audit", prefill=1, decode=2) as cluster:
            stream = cluster.open_stream("/v1/completions", **LONG)
            first = next(stream)
            code, report, calls = self.audit_of_decoding(cluster)
            self.assertEqual(code, 0, report)
            self.assertGreater(sum(call["blocks"] for call in calls), 0)
            mine = [s["sequence"] for s in report["sequences"] if s["request"] == first["id"]]
            self.assertTrue(mine, report["sequences"])
            self.assertEqual({c["request"] for c in calls if c["sequence"] in mine}, {first["id"]})
            words = self.audit_in_words(cluster).stdout
            self.assertIn(first["id"], words)
            self.assertRegex(words.splitlines()[-1], "^OK: ")
            stream.close()

    def test_call_of_a_router_that_is_not_of_the_cluster_has_no_owner(self):
        with RunningCluster(BATON, "audit") as cluster, second_router(cluster) as url:
            own, cluster.url = cluster.url, url
            self.await_ready(cluster)
            stream = cluster.open_stream("/v1/completions", **LONG)
            next(stream)
            cluster.url = own
            code, report = self.audit(cluster, "--interval-s", "0.2")
            self.assertEqual(code, 1, report)
            leaks = [call for worker in report["workers"] for call in worker["calls"]
                     if call["leak"]]
            self.assertIn("no router knows the sequence", [call["reason"] for call in leaks])
            table = self.audit_in_words(cluster, "--interval-s", "0.2")
            self.assertEqual(table.returncode, 1, table.stdout + table.stderr)
            self.assertRegex(table.stdout.splitlines()[-1], "^[1-9][0-9]* without owner: ")
            stream.close()

    def await_ready(self, cluster):
        deadline = time.monotonic() + 60
        while cluster.request("GET", "/ready")[0] != 200 and time.monotonic() < deadline:
            time.sleep(0.05)

    def test_server_that_does_not_answer_is_named(self):
        with RunningCluster(BATON, "audit") as cluster:
            victim = cluster.workers("decode")[0]["pid"]
            os.kill(victim, signal.SIGSTOP)
            try:
                done = cluster.baton("audit", check=False)
            finally:
                os.kill(victim, signal.SIGCONT)
            self.assertEqual(done.returncode, 2)
            self.assertIn("decode-0 did not tell what it holds", done.stderr)
        done = cluster.baton("audit", check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no cluster is running", done.stderr)


if __name__ == "__main__":
    BATON = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
