#!/usr/bin/env python3
"""A crowd before a router: readers that take nothing of what they ask for, and connections without
end. Known answers beside them are right, and the router's memory stays within ARCHITECTURE.md's sum.

Usage: crowd_test.py BUILD_FOLDER [unittest arguments]. BATON_NIGHTLY=1: 10,000 readers and 100,000
connections instead of 400 and 3,000.
"""
import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import resource
import socket
import sys
import tempfile
import time
import types
import unittest

from router_side import Bench, rss_mb
from api_client import HttpError
from process_cluster import await_true

BUILD = None
NIGHTLY = "BATON_NIGHTLY" in os.environ
READERS, CHOICES, CONNECTIONS = (10_000, 1, 100_000) if NIGHTLY else (400, 4, 3000)
UNREAD_MB = 256 if NIGHTLY else 4
# What n answers that nobody reads may hold: their budget, its free part, and what is unsent.
SUM_MB = UNREAD_MB + min(128, READERS * 24 / 1024) + 64 + READERS * 16 / 1024
MOST_MB = 1.5 * SUM_MB + 48  # Strings grow by doubling; buffers of connections, calls and prompts.
KNOWN = [{"prompt": [[100] * (3 + i)], "max_tokens": 60, "ignore_eos": True, "temperature": 0}
         for i in range(6)]


def connect(port, buffer_bytes=0):
    """With a buffer of that size the kernel keeps little for the reader on either side."""
    client = socket.socket()
    if buffer_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    client.settimeout(60)
    client.connect(("127.0.0.1", port))
    return client


def post(body):
    data = json.dumps({"model": "model", **body}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: %d\r\n\r\n%s" % (
        len(data), data)


def answer(side, body):
    """The text of a stream, which may be refused for now before it begins."""
    for _ in range(600):
        try:
            chunks = side.stream("/v1/completions", **body)
            return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
        except HttpError as error:
            if error.code != 503:
                raise
            time.sleep(0.1)
    raise AssertionError("it takes nothing for a minute")


class CrowdTest(unittest.TestCase):
    def setUp(self):
        folder = self.enterContext(tempfile.TemporaryDirectory(prefix="baton-crowd-"))
        bench = Bench(types.SimpleNamespace(build=BUILD), folder)
        addresses = self.enterContext(bench.mock())
        self.side = self.enterContext(
            bench.router(addresses, "--max-unread-bytes", UNREAD_MB << 20)).await_ready()
        self.pool = self.enterContext(concurrent.futures.ThreadPoolExecutor(32))
        self.expected = self.known().result()
        self.before = self.largest = rss_mb(self.side.pid)

    def known(self):
        """Will be the texts of six streams at once."""
        texts = [self.pool.submit(answer, self.side, body) for body in KNOWN]
        return self.pool.submit(lambda: [text.result() for text in texts])

    def look(self):
        self.largest = max(self.largest, rss_mb(self.side.pid))
        self.assertLess(self.largest - self.before, MOST_MB)

    def crowd(self):
        """Readers that take nothing."""
        request = post({"prompt": [100, 101], "stream": True, "n": CHOICES, "max_tokens": 3000,
                        "ignore_eos": True})
        readers = []
        for _ in range(READERS):
            readers.append(connect(self.side.port, 2048))
            readers[-1].sendall(request)
        return readers

    def storm(self):
        """One connection after another, each of which says nothing, or not all; few are closed
        before others come."""
        beginnings = itertools.cycle((b"", b"GET /health HTT", post({"prompt": "a"})[:-5]))
        begun = collections.deque()
        for number in range(CONNECTIONS):
            begun.append(connect(self.side.port))
            begun[-1].sendall(next(beginnings))
            if len(begun) > 1000:
                begun.popleft().close()
            if number % 500 == 0:
                self.assertEqual(self.side.request("GET", "/health")[0], 200)
                self.look()
        for client in begun:
            client.close()

    def test_a_crowd_takes_its_sum_and_nobody_else_s(self):
        self.assertEqual(len(set(self.expected)), len(KNOWN), "each is another")
        ended = self.side.ended_requests()
        known = self.known()  # Begins before the crowd, and goes on amid it.
        readers = self.crowd()
        self.look()
        self.storm()
        self.assertEqual(known.result(), self.expected)
        known = self.known()

        def some_were_ended():
            self.look()
            return self.side.ended_requests() > ended + 2 * len(KNOWN)
        await_true(some_were_ended, 300 if NIGHTLY else 60, "answers that nobody reads are ended")
        self.assertEqual(known.result(), self.expected)
        for reader in readers:
            reader.close()
        await_true(lambda: self.side.metric("baton_requests_running") == 0, 60, "it is quiet")
        self.assertEqual(self.known().result(), self.expected)
        print(f"{READERS} readers, {CONNECTIONS} connections: {self.before:.0f} MB before, "
              f"{self.largest:.0f} MB at most, {SUM_MB:.0f} MB more is the sum", file=sys.stderr)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    BUILD = pathlib.Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
