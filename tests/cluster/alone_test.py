#!/usr/bin/env python3
"""A decode worker without a prefill worker computes prompts itself: the same tokens, bits and scores,
while the only prefill worker is killed under streams, with a router that never saw it, until it is back,
and beside one whose K/V is secured otherwise.

Usage: alone_test.py FOLDER_OF_PROGRAMS [unittest arguments]
"""
import pathlib
import signal
import sys
import threading
import unittest

from bits_test import ask, prompt
from process_cluster import ProcessCluster, await_true
from running_cluster import at_once

BIN = None
TOKENS = 40


def request(length, **more):
    return dict(prompt=prompt(length, salt=length), max_tokens=TOKENS, temperature=0,
                ignore_eos=True, **more)


# Of several chunks and steps, of less than a block, sampled, and of one token.
REQUESTS = [request(700), request(3), {**request(90), "temperature": 0.9, "seed": 3},
            {**request(50), "max_tokens": 1}]


# Scores of a prompt alone, of several chunks, of one token, and with an answer of several choices.
SCORED = [dict(prompt=prompt(300, salt=5), max_tokens=0, echo=True, logprobs=3),
          dict(prompt=[0], max_tokens=0, echo=True, logprobs=0),
          dict(prompt=[prompt(90, salt=7), prompt(40, salt=8)], max_tokens=5, n=2, echo=True, logprobs=0,
               temperature=0.8, seed=11, ignore_eos=True)]


class AloneTest(unittest.TestCase):
    def scores(self, cluster):
        """All that is told of the choices, numbers as they are."""
        return [[{**choice} for choice in cluster.post("/v1/completions", return_token_ids=True,
                                                       **one)["choices"]] for one in SCORED]

    def answers(self, cluster):
        answers = at_once([lambda r=r: ask(cluster, r)[:2] for r in REQUESTS])
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def kill_prefill(self, cluster):
        cluster.prefill[0].signal(signal.SIGKILL)
        cluster.prefill[0].await_exit()

    def await_alone(self, cluster, alone=True):
        decode = cluster.decode[0]
        await_true(lambda: cluster.said_of(decode)["alone"] == alone, 30,
                   f"the router says {'' if alone else 'no more '}that the decode worker is alone")
        cluster.await_ready()
        self.assertEqual(cluster.router.metric("baton_decode_workers_alone"), int(alone))

    def test_the_decode_worker_goes_on_alone_until_a_prefill_worker_is_there(self):
        with ProcessCluster(BIN, "alone", prefill=1, decode=1) as cluster:
            decode = cluster.decode[0]
            known = self.answers(cluster)
            scored = self.scores(cluster)
            self.assertEqual(len(scored[0][0]["logprobs"]["token_logprobs"]), 300)
            self.assertEqual(decode.metric("baton_self_prefills_total"), 0)

            # Killed with prompts in every state, and more asked meanwhile.
            results = []
            thread = threading.Thread(target=lambda: results.extend(
                at_once([lambda: self.answers(cluster) for _ in range(3)])))
            computed = cluster.prefill[0].metric("baton_prefix_cache_queries_tokens_total")
            thread.start()
            await_true(lambda: cluster.prefill[0].metric("baton_prefix_cache_queries_tokens_total") > computed, 30,
                       "the prefill worker has begun")
            self.kill_prefill(cluster)
            thread.join(120)
            self.assertEqual(results, [known] * 3)
            self.await_alone(cluster)
            self.assertIn("computes prompts itself", cluster.said_of(decode)["reason"])
            self.assertEqual(self.answers(cluster), known)
            self.assertGreater(decode.metric("baton_self_prefills_total"), 0)
            cached = ask(cluster, REQUESTS[0])[2]["prompt_tokens_details"]["cached_tokens"]
            self.assertGreater(cached, 600, "of 700 that were computed before")
            self.assertEqual(self.scores(cluster), scored)

            # A router that comes up without one.
            cluster.restart(cluster.router)
            self.assertEqual(self.answers(cluster), known)
            self.assertEqual(self.scores(cluster), scored)

            # It takes over.
            cluster.restart(cluster.prefill[0])
            self.await_alone(cluster, alone=False)
            before = decode.metric("baton_self_prefills_total")
            handoffs = decode.metric("baton_handoffs_total")
            self.assertEqual(self.answers(cluster), known)
            self.assertEqual(decode.metric("baton_self_prefills_total"), before)
            self.assertGreaterEqual(decode.metric("baton_handoffs_total"), handoffs + 3)
            self.assertEqual(cluster.await_quiet(), {})
            self.assertEqual(cluster.audit()[0], 0, cluster.audit()[1])

    def test_workers_whose_kv_is_secured_otherwise_never_pair_and_all_say_why(self):
        with ProcessCluster(BIN, "alone-security", prefill=1, decode=1) as cluster:
            prefill, decode = cluster.prefill[0], cluster.decode[0]
            known = self.answers(cluster)
            pair = cluster.get("/status")["kv_pairs"]
            self.assertEqual([(p["prefill"], p["decode"], p["transport"], p["security"]) for p in pair],
                             [(prefill.address, decode.address, "tcp", "authenticated")])
            self.assertIn("no NCCL", pair[0]["why"])
            prefill.arguments += ["--kv-security", "tls"]
            cluster.restart(prefill)
            self.await_alone(cluster)
            failed = decode.metric("baton_kv_transport_failed_handshakes_total")
            handoffs = decode.metric("baton_handoffs_total")
            self.assertEqual(self.answers(cluster), known)
            self.assertEqual(decode.metric("baton_handoffs_total"), handoffs)
            self.assertEqual(decode.metric("baton_kv_transport_failed_handshakes_total"), failed,
                             "nobody tries")
            why = ("--kv-security is tls at the prefill worker and authenticated at the decode worker: "
                   "give both the same")
            for said in (cluster.said_of(prefill)["reason"], cluster.said_of(decode)["reason"],
                         cluster.router.last_log()):
                self.assertIn(why, said)
            pair = cluster.get("/status")["kv_pairs"]
            self.assertEqual([(p["transport"], p["why"]) for p in pair], [("none", why)])
            decode.arguments += ["--kv-security", "tls"]
            cluster.restart(decode)
            await_true(lambda: [(p["transport"], p["security"]) for p in cluster.get("/status")["kv_pairs"]]
                       == [("tcp", "tls")], 30, "they pair")
            self.assertEqual(self.answers(cluster), known)
            self.assertGreater(decode.metric("baton_handoffs_total"), 0)


if __name__ == "__main__":
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
