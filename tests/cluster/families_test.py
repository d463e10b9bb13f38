#!/usr/bin/env python3
"""Every family through a cluster: in pairs of workers, in ranks, in pools that are too small and
past killed workers an answer has the bits of one process, a decode worker alone. BATON_NIGHTLY=1
tries each family everywhere, else some of them in one place each.

Usage: families_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import os
import pathlib
import signal
import sys
import tempfile
import threading
import unittest

import family_model
from amid_streams import MAX_TRIES
from process_cluster import ProcessCluster, await_true
from running_cluster import at_once

BIN = None
NIGHTLY = "BATON_NIGHTLY" in os.environ
NUM_BLOCKS = 256
TIGHT = 30  # The longest sequence takes 25 blocks, all together more than 100.
# All layers have a window, so that an answer soon holds as many blocks as it ever will: with these
# prompts nobody gives way to another.
NEVER_SHORT = ("mixtral",)
PLACES = ("pairs", "ranks", "recompute", "swap", "killed")
BY_DEFAULT = {"opt-350m": ["recompute"], "neox-sequential": ["ranks"], "gemma2": ["swap"],
              "phi3-longrope": ["killed"], "qwen2-moe": ["pairs"]}
WORKER = dict(compute_dtype="f32", device="cpu", block_size=8, chunk_tokens=24)


def request(length, **more):
    prompt = [3 + (i * i * 7 + i * 31 + length * 13) % 120 for i in range(length)]
    return {**dict(prompt=prompt, max_tokens=100, temperature=0, ignore_eos=True), **more}


# Around blocks, chunks and windows, past the original length of longrope; and choices that share.
REQUESTS = [request(n) for n in (1, 17, 40, 64, 100)]
REQUESTS += [request(41, temperature=0.9, seed=3, top_p=0.95, repetition_penalty=1.1),
             request(43, temperature=0.8, seed=5, n=3)]


def ask(cluster, body):
    """(tokens, digests) of each choice."""
    answer = cluster.post("/v1/completions", return_logits_digest=True, return_token_ids=True,
                          **body)
    for choice in answer["choices"]:
        assert len(choice["logits_digests"]) == len(choice["token_ids"]) == body["max_tokens"]
    return [(c["token_ids"], c["logits_digests"]) for c in answer["choices"]]


def answers(cluster):
    all_answers = at_once([lambda r=r: ask(cluster, r) for r in REQUESTS])
    for answer in all_answers:
        if isinstance(answer, Exception):
            raise answer
    return all_answers


class FamiliesTest(unittest.TestCase):
    def cluster(self, model, prefill=1, decode=1, prefill_tp=1, decode_tp=1, **worker):
        return ProcessCluster(
            BIN, "families", prefill, decode, router=dict(model=model),
            worker={**WORKER, "model": model, "num_blocks": NUM_BLOCKS, **worker},
            prefill_tp=prefill_tp, decode_tp=decode_tp)

    def check_quiet(self, cluster):
        self.assertEqual(cluster.await_quiet(), {})
        self.assertEqual(cluster.audit()[0], 0, cluster.audit()[1])

    def in_one_process(self, model):
        """By a decode worker that computes prompts itself, one request after the other."""
        with self.cluster(model) as cluster:
            decode = cluster.decode[0]
            cluster.prefill[0].signal(signal.SIGKILL)
            cluster.prefill[0].await_exit()
            await_true(lambda: cluster.said_of(decode)["alone"], 30, "the decode worker is alone")
            handoffs = decode.metric("baton_handoffs_total")  # A probe's.
            known = [ask(cluster, r) for r in REQUESTS]
            self.assertGreaterEqual(decode.metric("baton_self_prefills_total"), len(REQUESTS))
            self.assertEqual(decode.metric("baton_handoffs_total"), handoffs)
        digests = [d for answer in known for _, row in answer for d in row]
        self.assertGreater(len(set(digests)), len(digests) * 0.5)
        return known

    def in_pairs(self, model, known):
        with self.cluster(model, 2, 2, block_size=16, chunk_tokens=7) as cluster:
            self.assertEqual(answers(cluster), known)
            self.assertEqual(answers(cluster), known, "with every prefix cached")
            handoffs = [d.metric("baton_handoffs_total") for d in cluster.decode]
            self.assertGreater(min(handoffs), 0)
            self.check_quiet(cluster)

    def in_ranks(self, model, known):
        for prefill_tp, decode_tp in ((2, 2), (1, 2), (2, 1))[:3 if NIGHTLY else 1]:
            with self.cluster(model, prefill_tp=prefill_tp, decode_tp=decode_tp) as cluster:
                self.assertEqual(answers(cluster), known)
                self.check_quiet(cluster)

    def check_tight(self, model, known, preemption):
        with self.cluster(model, num_blocks=TIGHT, preemption=preemption) as cluster:
            decode = cluster.decode[0]
            for _ in range(MAX_TRIES):  # On a busy machine answers may follow each other.
                self.assertEqual(answers(cluster), known)
                if model.name in NEVER_SHORT or decode.metric("baton_preemptions_total") > 0:
                    break
            self.check_quiet(cluster)
            if model.name in NEVER_SHORT:
                return
            self.assertGreater(decode.metric("baton_preemptions_total"), 0)
            swapped = decode.metric("baton_swapped_sequences_total")
            self.assertEqual(swapped > 0, preemption == "swap")

    def in_recompute(self, model, known):
        self.check_tight(model, known, "recompute")

    def in_swap(self, model, known):
        self.check_tight(model, known, "swap")

    def in_killed(self, model, known):
        with self.cluster(model, 2, 2) as cluster:
            for _ in range(MAX_TRIES):
                got = []
                client = threading.Thread(
                    target=lambda: got.extend(at_once([lambda: answers(cluster)])))
                client.start()
                busy = await_true(
                    lambda: [d for d in cluster.decode if d.blocks().get("filling")] or
                    [None] * (not client.is_alive()), 60, "a worker decodes", pause=0)[0]
                if busy:
                    busy.signal(signal.SIGKILL)
                    busy.await_exit()
                client.join(120)
                self.assertFalse(client.is_alive(), "no answer for two minutes")
                self.assertEqual(got, [known])
                if busy:
                    cluster.restart(busy)
                if cluster.router.metric("baton_moves_total") > 0:
                    break
            self.assertGreater(cluster.router.metric("baton_moves_total"), 0, "nothing was moved")
            self.check_quiet(cluster)

    def test_every_family_has_the_bits_of_one_process_wherever_it_runs(self):
        where = {name: PLACES for name in family_model.FAMILIES} if NIGHTLY else BY_DEFAULT
        for family, places in where.items():
            with tempfile.TemporaryDirectory() as folder:
                model = family_model.write(family, folder)
                known = self.in_one_process(model)
                for place in places:
                    with self.subTest(family=family, place=place):
                        getattr(self, f"in_{place}")(model, known)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
