#!/usr/bin/env python3
"""What answers cost the router, whatever their readers do: its memory stays under a named bound.

Usage: slow_readers_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import json
import pathlib
import re
import resource
import socket
import sys
import time
import unittest
import urllib.parse

from api_client import HttpError
from process_cluster import ProcessCluster, await_true

BIN = None
MAX_CONNECTIONS = 1000
READERS = 16
# Each answer is some 20 MB of JSON, so a router that makes them before they are read takes hundreds.
MAX_GROWTH_MB = 96
# Beyond the first 24 KiB of each answer: some 4,600 tokens.
UNREAD_BYTES = 200_000
# The largest permitted: 370 x 21 x 128 log probabilities.
PROMPT = [100 + i % 50 for i in range(370)]
LARGEST = {"prompt": PROMPT, "echo": True, "logprobs": 20, "n": 128, "max_tokens": 0}


def rss_mb(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


class Reader:
    """A client with a small buffer that reads only when it is told to."""

    def __init__(self, url, body):
        address = urllib.parse.urlparse(url)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self.socket.settimeout(60)
        self.socket.connect((address.hostname, address.port))
        data = json.dumps(body).encode()
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\n"
                            b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        self.data = b""

    def begin(self):
        """Until the answer has begun."""
        while b"\r\n\r\n" not in self.data:
            self.data += self.socket.recv(4096)
        return self

    def read_all(self):
        """The body, without its chunks."""
        pieces = [self.data]
        while piece := self.socket.recv(1 << 20):
            pieces.append(piece)
        head, _, rest = b"".join(pieces).partition(b"\r\n\r\n")
        assert b"Transfer-Encoding: chunked" in head, head
        body, at = [], 0
        while True:
            line = rest.index(b"\r\n", at)
            size = int(rest[at:line], 16)
            if size == 0:
                return b"".join(body)
            body.append(rest[line + 2:line + 2 + size])
            at = line + 2 + size + 2

    def close(self):
        self.socket.close()


class SlowReadersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = ProcessCluster(BIN, "slow-readers", prefill=1, decode=1,
                                     router={"max_connections": MAX_CONNECTIONS}).__enter__()
        cls.pid = cls.cluster.router.pid
        cls.cluster.post("/v1/completions", **{**LARGEST, "n": 1})  # What is allocated once.

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None, None, None)

    def assert_bounded_while_nobody_reads(self, body):
        """The readers, each of which has seen the head of its answer and nothing more."""
        before = rss_mb(self.pid)
        readers = [Reader(self.cluster.url, body) for _ in range(READERS)]
        for reader in readers:
            reader.begin()
        largest = 0
        for _ in range(20):  # While the router could go on making what nobody reads.
            largest = max(largest, rss_mb(self.pid))
            time.sleep(0.1)
        self.assertLess(largest - before, MAX_GROWTH_MB)
        return readers

    def assert_alive(self):
        answer = self.cluster.post("/v1/completions", prompt=[100, 101], max_tokens=2,
                                   ignore_eos=True)
        self.assertEqual(answer["usage"]["completion_tokens"], 2)

    def test_a_small_request_for_a_huge_answer_is_refused_by_name_and_value(self):
        body = {"prompt": PROMPT, "echo": True, "max_tokens": 0, "logprobs": 20, "n": 128}
        before = rss_mb(self.pid)
        # 10 KB; then what is one step beyond the largest; then many prompts.
        for prompt, n in ((([100, 101] * 1000), 128), (PROMPT + [100, 101, 102], 128),
                          ([[100] * 400] * 4, 30)):
            with self.assertRaises(HttpError) as refused:
                self.cluster.post("/v1/completions", **{**body, "prompt": prompt, "n": n})
            self.assertEqual(refused.exception.code, 400)
            error = json.loads(refused.exception.body)["error"]
            self.assertEqual(error["param"], "logprobs")
            for part in ("logprobs is 20", f"n {n}", "at most 1000000"):
                self.assertIn(part, error["message"])
        self.assertLess(rss_mb(self.pid) - before, 8)

    def test_bodies_that_never_end_keep_nobody_out(self):
        before = rss_mb(self.pid)
        address = urllib.parse.urlparse(self.cluster.url)
        head = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n{"
        half_sent = [socket.create_connection((address.hostname, address.port), timeout=60)
                     for _ in range(400)]
        for client in half_sent:
            client.sendall(head % (4 << 20))
        for _ in range(20):
            self.assert_alive()
        self.assertLess(rss_mb(self.pid) - before, 16)
        for client in half_sent:
            client.close()

    def test_idle_connections_keep_nobody_out(self):
        before = rss_mb(self.pid)
        address = urllib.parse.urlparse(self.cluster.url)
        idle = [socket.create_connection((address.hostname, address.port), timeout=60)
                for _ in range(MAX_CONNECTIONS + 500)]
        for _ in range(20):
            self.assert_alive()
            self.assertEqual(self.cluster.request("GET", "/health")[0], 200)
        self.assertEqual(idle[0].recv(1), b"", "the one that was quiet longest goes")
        self.assertLess(rss_mb(self.pid) - before, 16)
        for client in idle:
            client.close()

    def test_full_answers_that_nobody_reads(self):
        readers = self.assert_bounded_while_nobody_reads(LARGEST)
        self.assert_alive()
        answer = json.loads(readers[-1].read_all())
        self.assertEqual(len(answer["choices"]), 128)
        for choice in (answer["choices"][0], answer["choices"][-1]):
            self.assertEqual(len(choice["logprobs"]["top_logprobs"]), len(PROMPT))
            self.assertEqual(choice, {**answer["choices"][0], "index": choice["index"]})
        for reader in readers:
            reader.close()
        self.assertEqual(self.cluster.await_quiet(), {})

    def test_streams_that_nobody_reads(self):
        readers = self.assert_bounded_while_nobody_reads({**LARGEST, "stream": True})
        self.assert_alive()
        events = readers[-1].read_all().split(b"\n\n")
        self.assertEqual(events[-2:], [b"data: [DONE]", b""])
        seen = sorted(json.loads(event[6:])["choices"][0]["index"] for event in events[:-2])
        self.assertEqual(seen, list(range(128)))
        for reader in readers:
            reader.close()
        self.assertEqual(self.cluster.await_quiet(), {})

    def assert_held_up_to_a_bound(self, body):
        """Of answers of generated tokens that nobody reads so much is made as the option says,
        and the next token of one of them ends it; whoever reads is served, before and after."""
        with ProcessCluster(BIN, "slow-readers-held", prefill=1, decode=1,
                            router={"max_unread_bytes": UNREAD_BYTES}) as cluster:
            quick = dict(prompt=[100, 101], max_tokens=100, temperature=0)
            expected = cluster.post("/v1/completions", **quick)
            readers = [Reader(cluster.url, body) for _ in range(3)]
            for reader in readers:
                reader.begin()
            await_true(lambda: cluster.router.metric("baton_requests_total") > 1, 60,
                       "an answer that nobody reads is ended")
            again = cluster.post("/v1/completions", **quick)
            self.assertEqual(again["choices"], expected["choices"])
            refused = 0
            for reader in readers:
                refused += b"too much text waits for readers" in reader.read_all()
                reader.close()
            self.assertTrue(0 < refused)
            self.assertEqual(cluster.await_quiet(), {})
            # All of it was given back.
            whole = cluster.post("/v1/completions", prompt=[100, 101], max_tokens=200, n=20,
                                 ignore_eos=True)
            self.assertEqual(whole["usage"]["completion_tokens"], 4000)

    def test_streams_of_tokens_that_nobody_reads(self):
        self.assert_held_up_to_a_bound({"prompt": [100, 101], "stream": True, "n": 16,
                                        "max_tokens": 1500, "ignore_eos": True})


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    BIN = sys.argv.pop(1)
    unittest.main(verbosity=2)
