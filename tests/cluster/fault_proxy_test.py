#!/usr/bin/env python3
"""The proxy of the fault tests does what it says, and counts it; the clients see wrong tokens.

Usage: fault_proxy_test.py [unittest arguments]
"""
import socket
import threading
import time
import unittest

from fault_proxy import Faults, ProxyLoop
from known_answers import KnownAnswers

DATA = bytes(range(256)) * 40


class FaultProxyTest(unittest.TestCase):
    def setUp(self):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.received, self.ended = bytearray(), threading.Event()
        threading.Thread(target=self.serve, daemon=True).start()
        self.proxy = self.enterContext(ProxyLoop()).proxy("%s:%d" % self.server.getsockname())
        host, port = self.proxy.address.rsplit(":", 1)
        self.client = socket.create_connection((host, int(port)), timeout=10)
        self.client.sendall(b"hello")
        self.assertEqual(self.client.recv(1), b"!")  # The connection stands before a fault is set.
        self.received.clear()

    def tearDown(self):
        self.client.close()
        self.server.close()

    def serve(self):
        connection, _ = self.server.accept()
        with connection:
            connection.recv(5)
            connection.sendall(b"!")
            try:
                while data := connection.recv(1 << 16):
                    self.received += data
            except ConnectionError:
                pass
        self.ended.set()

    def send(self, up, end=True):
        self.proxy.set(up=up)
        self.client.sendall(DATA)
        if end:
            self.client.shutdown(socket.SHUT_WR)
            self.assertTrue(self.ended.wait(10))

    def test_healed_link_hands_every_byte_on(self):
        self.send(Faults())
        self.assertEqual(self.received, DATA)
        self.assertEqual(self.proxy.counts["bytes_up"], len(DATA))

    def test_one_bit_of_each_chosen_byte_is_flipped(self):
        self.send(Faults(flip_at=(7, 5000)))
        wrong = [i for i, (a, b) in enumerate(zip(self.received, DATA)) if a != b]
        self.assertEqual(wrong, [7, 5000])
        self.assertEqual([(self.received[i] ^ DATA[i]).bit_count() for i in wrong], [1, 1])
        self.assertEqual(self.proxy.counts["flipped"], 2)

    def test_span_is_sent_twice(self):
        self.send(Faults(duplicate=(100, 50)))
        self.assertEqual(self.received, DATA[:150] + DATA[100:150] + DATA[150:])
        self.assertEqual(self.proxy.counts["duplicated"], 50)

    def test_cut_resets_both_ends_before_the_byte(self):
        self.send(Faults(cut_at=1000), end=False)
        self.assertTrue(self.ended.wait(10))
        self.assertLessEqual(len(self.received), 1000)  # A reset may overtake what was sent.
        with self.assertRaises(ConnectionError):
            if not self.client.recv(1):
                raise ConnectionResetError
        self.assertEqual(self.proxy.counts["cut"], 1)

    def test_swallowed_bytes_vanish_and_the_connection_stays(self):
        self.send(Faults(swallow_at=1000))
        self.assertEqual(self.received, DATA[:1000])
        self.assertEqual(self.proxy.counts["swallowed"], len(DATA) - 1000)

    def test_blocked_bytes_come_when_the_link_is_healed(self):
        self.send(Faults(block=True), end=False)
        deadline = time.monotonic() + 10
        while not self.proxy.counts["held"] and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(self.received, b"")
        self.proxy.set()
        self.client.shutdown(socket.SHUT_WR)
        self.assertTrue(self.ended.wait(10))
        self.assertEqual(self.received, DATA)

    def test_delay_and_rate_make_bytes_late_and_lose_none(self):
        for faults, counted in ((Faults(delay_s=0.3), "delayed"), (Faults(rate=30_000), "limited")):
            with self.subTest(counted):
                begin = time.monotonic()
                self.send(faults)
                self.assertEqual(self.received, DATA)
                self.assertGreaterEqual(time.monotonic() - begin, 0.25)
                self.assertEqual(self.proxy.counts[counted], len(DATA))
            self.tearDown()
            self.setUp()


class OneStream:
    """Stands for a cluster: an answer, then a stream that differs from it as told."""

    def __init__(self, tokens, finish="length"):
        self.tokens, self.finish = tokens, finish

    def post(self, path, **body):
        return {"choices": [{"token_ids": [1, 2, 3], "text": "abc", "finish_reason": "length"}]}

    def open_stream(self, path, **body):
        for i, token in enumerate(self.tokens):
            is_last = i + 1 == len(self.tokens)
            yield {"at": 0.0, "choices": [{"token_ids": [token], "text": "abcd"[i],
                                           "finish_reason": self.finish if is_last else None}]}


class KnownAnswersTest(unittest.TestCase):
    def test_wrong_missing_doubled_and_unfinished_tokens_are_all_told_from_right_ones(self):
        for tokens, finish, kind in (([1, 2, 3], "length", "ok"), ([1, 9, 3], "length", "wrong"),
                                     ([1, 2], "length", "wrong"), ([1, 2, 3, 3], "length", "wrong"),
                                     ([1, 2, 2], "length", "wrong"), ([1, 2, 3], "stop", "wrong")):
            cluster = OneStream(tokens, finish)
            outcome = KnownAnswers(cluster, [{}]).ask(cluster, 0)
            self.assertEqual(outcome.kind, kind, (tokens, finish, outcome))


if __name__ == "__main__":
    unittest.main(verbosity=2)
