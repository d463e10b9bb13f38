#!/usr/bin/env python3
"""Many requests of conversation-like lengths, 64 in flight: no error, no lost block, no growth.

Usage: soak_test.py PATH_OF_BATON [unittest arguments]. BATON_NIGHTLY=1 sends 2,000 instead of 400.
"""
import concurrent.futures
import math
import os
import pathlib
import random
import sys
import unittest

from running_cluster import RunningCluster

BATON = None
NIGHTLY = "BATON_NIGHTLY" in os.environ
REQUESTS = 2000 if NIGHTLY else 400
SETTLED = REQUESTS // 4  # Requests after which memory must have stopped growing.
IN_FLIGHT = 64
NUM_BLOCKS = 1024
MAX_LEN = 2048
MAX_GROWTH = 1.03


def draw_request(random_):
    """Lengths as in recorded conversations: log-normal, a long tail; a third begin alike."""
    length = max(1, min(1500, round(math.exp(random_.gauss(4.8, 1.0)))))
    tokens = max(1, min(MAX_LEN - length, round(math.exp(random_.gauss(3.5, 0.9))), 256))
    salt = random_.choice((1, 2, random_.randrange(3, 10**6)))
    prompt = [0] + [256 + (i * 37 + i // 64 * salt * 101 + salt) % 3800 for i in range(1, length)]
    return dict(prompt=prompt, max_tokens=tokens, seed=random_.randrange(2**31), ignore_eos=True,
                temperature=random_.choice((0, 0.8)))


def rss_kib(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


class SoakTest(unittest.TestCase):
    def test_every_request_ends_well_and_memory_does_not_grow(self):
        random_ = random.Random(3)
        bodies = [draw_request(random_) for _ in range(REQUESTS)]
        with RunningCluster(BATON, "soak", prefill=1, decode=1, num_blocks=NUM_BLOCKS) as cluster:
            pids = [w["pid"] for w in cluster.workers()] + [cluster.status()["router"]["pid"]]

            def send(body):
                usage = cluster.post("/v1/completions", **body)["usage"]
                return usage["prompt_tokens"], usage["completion_tokens"]

            with concurrent.futures.ThreadPoolExecutor(IN_FLIGHT) as pool:
                answers = list(pool.map(send, bodies[:SETTLED]))
                before = [rss_kib(pid) for pid in pids]
                answers += list(pool.map(send, bodies[SETTLED:]))
            after = [rss_kib(pid) for pid in pids]
            self.assertEqual(answers, [(len(b["prompt"]), b["max_tokens"]) for b in bodies])
            self.assertEqual(cluster.await_quiet(NUM_BLOCKS), [])
            growth = [b / a for a, b in zip(before, after)]
            print("RSS after / after a quarter:", " ".join(f"{g:.3f}" for g in growth))
            if NIGHTLY:  # After 100 requests the heap has not seen every size yet.
                self.assertLessEqual(max(growth), MAX_GROWTH)


if __name__ == "__main__":
    BATON = sys.argv.pop(1)
    unittest.main(verbosity=2)
