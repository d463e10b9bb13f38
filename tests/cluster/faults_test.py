#!/usr/bin/env python3
"""What a client and the survivors see when a worker dies, a client leaves or the cluster stops.

Usage: faults_test.py PATH_OF_BATON [unittest arguments]
"""
import itertools
import json
import os
import pathlib
import signal
import socket
import sys
import threading
import time
import unittest

from amid_streams import LONG, MAX_TRIES, AmidStreams, texts
from api_client import HttpError
from process_cluster import await_true
from running_cluster import RunningCluster, at_once

BATON = None
NUM_BLOCKS = 512


def runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class FaultsTest(AmidStreams, unittest.TestCase):
    def cluster(self, **options):
        return RunningCluster(BATON, "faults", **{"num_blocks": NUM_BLOCKS, **options})

    def assert_ended_by_an_error(self, chunks):
        """As an event of the stream, or as the answer where nothing had come before."""
        if isinstance(chunks[0], HttpError):
            self.assertEqual(chunks[0].code, 503, chunks[0])
            return
        self.assertIsInstance(chunks[-1], dict, chunks[-1])
        self.assertIn("error", chunks[-1], chunks[-1])
        self.assertTrue(chunks[-1]["error"]["message"])
        for chunk in chunks[:-1]:
            self.assertIsNone(chunk["choices"][0]["finish_reason"])

    def test_killed_decode_worker_costs_no_request_and_no_token(self):
        with self.cluster(decode=2) as cluster:
            undisturbed = self.start_streams(cluster, 6)(60)
            for _ in range(MAX_TRIES):
                join, (victim, survivor) = self.stop_amid_streams(cluster, 6)
                os.kill(victim["pid"], signal.SIGKILL)
                os.kill(survivor["pid"], signal.SIGCONT)
                results = join(60)
                for chunks in results:
                    self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
                self.assertEqual(texts(results), texts(undisturbed))
                self.assertEqual(cluster.await_quiet(NUM_BLOCKS), [])
                if cluster.metric("baton_moves_total"):
                    break
            else:
                self.fail(f"in {MAX_TRIES} tries the killed worker had no stream to lose")
            self.assertIn("killed by signal 9", cluster.log("baton-up"))

    def test_killed_only_decode_worker_makes_new_requests_fail_at_once_and_not_ready(self):
        with self.cluster(no_restart=True) as cluster:
            join, (victim,) = self.stop_amid_streams(cluster, 3)
            os.kill(victim["pid"], signal.SIGKILL)
            for chunks in join(30):
                self.assert_ended_by_an_error(chunks)
            self.assertEqual(cluster.await_quiet(NUM_BLOCKS, dead=[victim["address"]]), [])
            begin = time.monotonic()
            with self.assertRaises(HttpError) as refused:
                cluster.post("/v1/completions", prompt="In the beginning", max_tokens=4)
            self.assertEqual(refused.exception.code, 503)
            self.assertIn("Retry-After", refused.exception.headers)
            self.assertLess(time.monotonic() - begin, 10)
            self.assertEqual(cluster.request("GET", "/health")[0], 200)
            self.assertEqual(cluster.request("GET", "/ready")[0], 503)

    def test_rolling_restart_of_every_worker_costs_no_request_and_no_token(self):
        body = dict(LONG, max_tokens=100, temperature=0.8, seed=5)
        with self.cluster(prefill=2, decode=2) as cluster:
            def answer():
                return cluster.post("/v1/completions", **body)["choices"][0]["text"]
            undisturbed = answer()
            restarted = threading.Event()
            answers = [[] for _ in range(6)]

            def ask(own):
                while not restarted.is_set():
                    own.extend(at_once([answer]))

            threads = [threading.Thread(target=ask, args=(own,)) for own in answers]
            for thread in threads:
                thread.start()
            try:
                done = cluster.baton("restart", check=False)
            finally:
                restarted.set()
                for thread in threads:
                    thread.join()
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.count("serves again"), 4, done.stdout)
            for own in answers:
                self.assertEqual(own, [undisturbed] * len(own))
                self.assertTrue(own, "a client got no answer during the restart")
            self.assertEqual(cluster.await_quiet(NUM_BLOCKS), [])
            self.assertEqual(cluster.baton("audit").returncode, 0)

    def test_killed_prefill_worker_costs_no_request_and_no_token(self):
        with self.cluster(prefill=2, decode=2) as cluster:
            def answer(prompt):
                body = dict(prompt=prompt, max_tokens=8, temperature=0, ignore_eos=True)
                return cluster.post("/v1/completions", **body)["choices"][0]["text"]

            enough = threading.Event()
            answers = {}

            def ask(client):
                for i in itertools.count():
                    if enough.is_set():
                        return
                    # All different, or a cached prefix would leave nothing to prefill.
                    prompt = f"{client} {i} " + "the LORD said unto him " * 60
                    answers[prompt] = at_once([lambda: answer(prompt)])[0]

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
            for thread in threads:
                thread.start()
            try:
                for _ in range(MAX_TRIES):
                    count = len(answers)
                    await_true(lambda: len(answers) > count + 6, 60, "all clients get answers")
                    victim = max(cluster.workers("prefill"), key=lambda w: w["running"] + w["waiting"])
                    os.kill(victim["pid"], signal.SIGKILL)
                    count = len(answers)
                    await_true(lambda: len(answers) > count + 12, 60, "answers after the kill")
                    if cluster.metric("baton_moves_total"):
                        break  # Else the victim was idle, and the claim was not tried.
            finally:
                enough.set()
                for thread in threads:
                    thread.join()
            self.assertGreater(cluster.metric("baton_moves_total"), 0)
            self.assertEqual([a for a in answers.values() if isinstance(a, Exception)], [])
            for prompt, text in list(answers.items())[-30:]:
                self.assertEqual(answer(prompt), text)
            self.assertEqual(cluster.await_quiet(NUM_BLOCKS), [])

    def test_stopped_decode_worker_does_not_hang_its_requests(self):
        with self.cluster() as cluster:
            join, (victim,) = self.stop_amid_streams(cluster, 2)
            try:
                for chunks in join(40):
                    self.assert_ended_by_an_error(chunks)
            finally:
                os.kill(victim["pid"], signal.SIGCONT)
            self.assertEqual(cluster.await_quiet(NUM_BLOCKS), [])

    def test_client_that_leaves_frees_its_blocks_on_both_workers(self):
        with self.cluster() as cluster:
            body = json.dumps({"model": cluster.model, "stream": True, **LONG}).encode()
            host, port = cluster.connect().host, cluster.connect().port
            for read_first in (True, False):  # While it decodes, and maybe before it prefills.
                sockets = []
                ended = cluster.ended_requests()
                for _ in range(8):
                    client = socket.create_connection((host, port), timeout=30)
                    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "
                                   + str(len(body)).encode() + b"\r\n\r\n" + body)
                    if read_first:
                        client.recv(1)
                    sockets.append(client)
                for client in sockets:
                    client.close()
                deadline = time.monotonic() + 10
                while cluster.ended_requests() < ended + 8 and time.monotonic() < deadline:
                    time.sleep(0.02)
                self.assertEqual(cluster.ended_requests(), ended + 8)
                self.assertEqual(cluster.await_quiet(NUM_BLOCKS), [])

    def test_down_drains_what_runs_and_every_process_exits_0(self):
        with self.cluster() as cluster:
            pids = [w["pid"] for w in cluster.workers()] + [cluster.supervisor]
            join = self.start_streams(cluster, 4, max_tokens=150)
            cluster.baton("down")
            for chunks in join(60):
                self.assertIsInstance(chunks[-1], dict, chunks[-1])
                self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
            self.assertFalse([pid for pid in pids if runs(pid)])
            log = cluster.log("baton-up")
            self.assertNotIn("killing", log)
            self.assertNotIn("ended:", log)  # The obituary of a child that did not exit with 0.

    def test_mixed_load_ends_with_every_block_free_or_cached(self):
        with self.cluster(decode=2, num_blocks=256) as cluster:
            calls = []
            for i in range(60):
                words = "the LORD said unto him " * (1 + i * 7 % 40)
                body = dict(prompt=f"{i} {words}", max_tokens=1 + i * 13 % 60, seed=i)
                if i % 4 == 0:
                    body["n"] = 2
                calls.append(lambda body=body: cluster.post("/v1/completions", **body))
            failures = [r for r in at_once(calls) if isinstance(r, Exception)]
            self.assertEqual(failures, [])
            self.assertEqual(cluster.await_quiet(256), [])


if __name__ == "__main__":
    BATON = sys.argv.pop(1)
    unittest.main(verbosity=2)
