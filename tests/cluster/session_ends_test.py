#!/usr/bin/env python3
"""One flipped bit under a thousand sequences: all return to their decode worker, which has them.

Usage: session_ends_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import sys
import threading
import time
import unittest

from bits_test import prompt
from fault_proxy import Faults
from process_cluster import ProcessCluster, await_true

BIN = None
REQUESTS, CHOICES, ANSWER = 8, 128, 60
FLIP_AT = 100_000  # Of what the decode worker tells the router, a few steps on.
BLOCK = 16


class Stream:
    """The tokens of all choices of one request, and when each came."""

    def __init__(self, cluster, index):
        self.tokens = [[] for _ in range(CHOICES)]
        self.times = [[] for _ in range(CHOICES)]
        self.error = None
        self.thread = threading.Thread(target=self.run, args=(cluster, index))
        self.thread.start()

    def run(self, cluster, index):
        try:
            for chunk in cluster.open_stream(
                    "/v1/completions", prompt=prompt(20 + 7 * index, salt=index), n=CHOICES,
                    max_tokens=ANSWER, temperature=0.9, seed=index, ignore_eos=True,
                    return_token_ids=True):
                for choice in chunk.get("choices", []):
                    ids = choice.get("token_ids") or []
                    self.tokens[choice["index"]] += ids
                    self.times[choice["index"]] += [chunk["at"]] * len(ids)
        except Exception as error:  # pylint: disable=broad-except
            self.error = error


class SessionEndsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = ProcessCluster(
            BIN, "session-ends", prefill=1, decode=1,
            worker={"num_blocks": 8192, "max_batch_sequences": 1024, "chunk_tokens": 2048,
                    "block_size": BLOCK})
        cls.enterClassContext(cls.cluster)

    def ask(self):
        return [Stream(self.cluster, index) for index in range(REQUESTS)]

    def end(self, streams):
        for stream in streams:
            stream.thread.join()
            self.assertIsNone(stream.error)
        return [stream.tokens for stream in streams]

    def num_seen(self, streams):
        return sum(len(tokens) for stream in streams for tokens in stream.tokens)

    def test_a_flipped_bit_costs_no_prefill_and_no_move(self):
        expected = self.end(self.ask())
        self.assertEqual({len(tokens) for answer in expected for tokens in answer}, {ANSWER})
        router, (decode,), (prefill,) = self.cluster, self.cluster.decode, self.cluster.prefill
        streams = self.ask()
        # Each has more than two tokens: nobody waits to be handed over any more.
        await_true(lambda: all(len(tokens) > 2 for s in streams for tokens in s.tokens), 120,
                   "all decode")
        names = ("baton_moves_total", "baton_retries_total", "baton_returns_total")
        before = [router.metric(name) for name in names]
        prefilled = prefill.metric("baton_prefix_cache_queries_tokens_total")
        queries, hits = (decode.metric(f"baton_prefix_cache_{kind}_tokens_total")
                         for kind in ("queries", "hits"))
        resumed = decode.metric("baton_resumed_answers_total")
        decode.control.set(down=Faults(flip_at=(FLIP_AT,)))
        await_true(lambda: decode.control.counts["flipped"], 60, "a bit is flipped", pause=0.002)
        flipped = time.monotonic()
        decode.control.set()
        answers = self.end(streams)
        for answer, right in zip(answers, expected):
            self.assertEqual(answer, right)
        moves, retries, returns = [router.metric(n) - b for n, b in zip(names, before)]
        self.assertEqual([moves, retries], [0, 0])
        self.assertGreater(returns, REQUESTS * CHOICES // 2)
        # The router's probes have three tokens, these prompts at least 20.
        again = prefill.metric("baton_prefix_cache_queries_tokens_total") - prefilled
        self.assertLess(again, 20)
        computed = (decode.metric("baton_prefix_cache_queries_tokens_total") - queries -
                    decode.metric("baton_prefix_cache_hits_tokens_total") + hits)
        resumed = decode.metric("baton_resumed_answers_total") - resumed
        # Each computes its next token, and nothing again; but for a few, of which less was known.
        self.assertGreater(resumed, returns * 0.9)
        # The router's probes compute a few tokens, too.
        self.assertLessEqual(computed, resumed + (returns - resumed + 4) * BLOCK)
        pauses = sorted(max(after - before for before, after in zip(times, times[1:])
                            if after > flipped - 1)
                        for stream in streams for times in stream.times)
        usual = sorted(after - before for stream in streams for times in stream.times
                       for before, after in zip(times, times[1:]) if after < flipped - 1)
        print(f"{returns:.0f} returned, {resumed:.0f} of them to all that they had, and computed "
              f"{computed:.0f} tokens; longest pause of each, "
              f"median {pauses[len(pauses) // 2]:.3f} s, p99 {pauses[len(pauses) * 99 // 100]:.3f} "
              f"s; before between tokens, p99 "
              f"{usual[len(usual) * 99 // 100] if usual else 0:.3f} s", file=sys.stderr)
        self.assertEqual(self.cluster.await_quiet(), {})


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main()
