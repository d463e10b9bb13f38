#!/usr/bin/env python3
"""Bits through whole clusters, by return_logits_digest, for each kernel set that this CPU runs and
with and without a sliding window. Within a set, in bf16: decode's logits are those of a prefill of
the same tokens; batch 1 = batch 33; chunk 2048 = 16, block 256 = 8, threads 1 = 2, 1P1D = 1P2D.
Between sets: in f32 all agree, and in bf16 those that say they have the same numerics.

BATON_NIGHTLY=1 changes the options of a cluster one by one too, tries every position, f32, and the
batch with a window, and preempts: swapped = computed again = undisturbed.

Usage: kernel_sets_test.py PATH_OF_BATON [unittest arguments]
"""
import contextlib
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import unittest

from amid_streams import MAX_TRIES
from api_client import metric_sum
from bits_test import ask, bits, prompt
from process_cluster import await_true
from running_cluster import MODEL, RunningCluster, at_once
from window_test import windowed_model

BATON = None
NIGHTLY = "BATON_NIGHTLY" in os.environ
TOKENS = 24 if NIGHTLY else 12
POSITIONS = range(1, TOKENS) if NIGHTLY else (1, TOKENS - 1)


def request(length, **more):
    """No two share a prefix: each is computed in every cluster."""
    return dict(prompt=prompt(length, salt=length), max_tokens=TOKENS, temperature=0,
                ignore_eos=True, **more)


# Around blocks, chunks, the window of 70 and, last, partial attention's 512.
REQUESTS = [request(1), request(17), request(100),
            {**request(50), "temperature": 0.9, "top_p": 0.95, "seed": 3}, request(530)]
LONG_ANSWERS = [dict(r, max_tokens=200) for r in REQUESTS[:-1]]  # For few blocks.
BASE = dict(prefill=1, decode=1, chunk_tokens=2048, block_size=256, num_blocks=160, threads=1)
CHANGES = [dict(decode=2), dict(chunk_tokens=16), dict(block_size=8, num_blocks=5120),
           dict(threads=2)]
ALL_CHANGED = dict(itertools.chain.from_iterable(change.items() for change in CHANGES))
PLAIN = "no window"
OTHERS = 32  # Sequences beside the one that is compared.


def requests_for(name):
    """Of a set: a long prompt takes the portable one seconds each time, so that is nightly."""
    return REQUESTS if NIGHTLY or name != "portable" else REQUESTS[:-1]


def known_sets():
    """The names that the program says it knows, but for auto."""
    program = pathlib.Path(BATON).resolve().with_name("baton-decode")
    done = subprocess.run([program, "--model", MODEL, "--kernels", "?"], text=True, timeout=60,
                          capture_output=True, check=False)
    names = re.search(r"--kernels \?: must be one of (.*)", done.stderr)
    if done.returncode == 0 or not names:
        raise AssertionError(f"{program} names no kernel sets: {done.stderr}")
    return [name for name in re.findall(r"\w+", names.group(1)) if name != "auto"]


def why_not(name):
    """What the program says if this CPU lacks something for the set; None if it can run."""
    try:
        with RunningCluster(BATON, "kernel-sets-probe", kernels=name, **BASE):
            return None
    except AssertionError as error:
        lack = re.search(r'kernels = "\w+": this CPU lacks [^;\n]*', str(error))
        if not lack:
            raise
        return lack.group()


@contextlib.contextmanager
def others_running(cluster):
    """So many long answers in the same batch on the decode worker, each asked again when it has
    ended; gives what tells whether none has: a busy machine may be late with what is asked."""
    url = cluster.workers("decode")[0]["metrics_url"]
    leave = threading.Event()
    ended = []

    def running():
        return metric_sum(url, "baton_requests_running")

    def answer(salt):
        while not leave.is_set():
            for _ in cluster.open_stream("/v1/completions", prompt=prompt(8, salt),
                                         max_tokens=1000, temperature=0, ignore_eos=True):
                if leave.is_set():
                    return
            ended.append(salt)

    threads = [threading.Thread(target=answer, args=(1000 + i,)) for i in range(OTHERS)]
    for thread in threads:
        thread.start()
    try:
        await_true(lambda: running() == OTHERS, 300, lambda: f"{OTHERS} answers: {running()} run")
        num_ended = len(ended)
        # A request of the test, or a probe, may be there too.
        yield lambda: running() >= OTHERS and len(ended) == num_ended
    finally:
        leave.set()
        for thread in threads:
            thread.join()


def prefilled(cluster, answers):
    """[the digests of some positions of an answer, each by a prefill of all before it], of each."""
    def digests(request, tokens):
        one = dict(request, max_tokens=1)
        return [ask(cluster, {**one, "prompt": request["prompt"] + tokens[:position]})[1][0]
                for position in POSITIONS]
    rows = at_once([lambda r=r, t=tokens: digests(r, t)
                    for r, (tokens, _) in zip(REQUESTS, answers)])
    for row in rows:
        if isinstance(row, Exception):
            raise row
    return rows


def loaded(cluster):
    """{(kernel set, numerics id)} of the workers, as they log them."""
    return {re.search(r' numerics="([^"]*)" kernels=(\S+) ', cluster.log(worker)).group(2, 1)
            for worker in ("prefill-0", "decode-0")}


class KernelSetsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.models = {PLAIN: MODEL, "window": windowed_model(cls.folder.name)}
        reasons = {name: why_not(name) for name in known_sets()}
        cls.sets = [name for name, reason in reasons.items() if reason is None]
        cls.seen = {}
        print("kernel sets:", ", ".join(cls.sets), file=sys.stderr)
        for reason in filter(None, reasons.values()):
            print("skipped:", reason, file=sys.stderr)

    def cluster(self, name, dtype, model, **changes):
        return RunningCluster(BATON, "kernel-sets", model=self.models[model], kernels=name,
                              compute_dtype=dtype, **{**BASE, **changes})

    def cases(self, *dtypes):
        return itertools.product(self.sets, dtypes, self.models)

    def reference(self, *case):
        """(answers, numerics) of a case: requests one by one in the unchanged cluster."""
        if case not in self.seen:
            with self.cluster(*case) as cluster:
                answers = bits(cluster, together=False, requests=requests_for(case[0]))
                ((kernels, numerics_id),) = loaded(cluster)
                self.assertEqual(kernels, case[0])
                self.seen[case] = answers, numerics_id
                if case[1] == "bf16" or NIGHTLY:
                    self.check_reference(cluster, answers, with_batch=NIGHTLY or case[2] == PLAIN)
                self.assertEqual(cluster.await_quiet(BASE["num_blocks"], seconds=30), [])
        return self.seen[case]

    def check_reference(self, cluster, answers, with_batch):
        self.assertEqual(prefilled(cluster, answers),
                         [[digests[p] for p in POSITIONS] for _, digests in answers],
                         "a prefill of prompt and answer has other bits than decode")
        if with_batch:
            few = slice(0, len(answers)) if NIGHTLY else slice(1, 3)
            for _ in range(MAX_TRIES):
                with others_running(cluster) as all_run:
                    self.assertEqual(bits(cluster, together=False, requests=REQUESTS[few]),
                                     answers[few], f"batch 1 has other bits than in {OTHERS + 1}")
                    if all_run():
                        return
            self.fail(f"in {MAX_TRIES} tries an answer ended too soon for a batch of {OTHERS + 1}")

    def test_the_portable_set_is_among_those_that_run(self):
        self.assertIn("portable", self.sets)

    def test_cluster_and_threads_change_no_bit(self):
        changes = [ALL_CHANGED, *CHANGES] if NIGHTLY else [ALL_CHANGED]
        for case in self.cases(*(("bf16", "f32") if NIGHTLY else ("bf16",))):
            for change in changes:
                with self.subTest(case, **change):
                    expected = self.reference(*case)[0]
                    with self.cluster(*case, **change) as cluster:
                        self.assertEqual(bits(cluster, True, requests_for(case[0])), expected)

    def test_sets_of_one_numerics_agree_bit_by_bit(self):
        by_numerics = {}
        for case in self.cases("bf16", "f32"):
            with self.subTest(case):
                answers, numerics_id = self.reference(*case)
                first, expected = by_numerics.setdefault((case[2], numerics_id), (case[0], answers))
                self.assertEqual(answers, expected[:len(answers)], f"unlike {first}")
        f32 = {numerics_id for _, numerics_id in by_numerics if "compute=f32" in numerics_id}
        self.assertEqual(len(f32), 1, "f32 has one order on all sets")

    def test_window_and_type_change_the_bits(self):
        """So the equalities above are of digests that can tell."""
        answers = [self.reference("portable", dtype, model)[0][2][1]
                   for dtype, model in itertools.product(("bf16", "f32"), self.models)]
        for one, other in itertools.combinations(answers, 2):
            self.assertNotEqual(one, other)

    @unittest.skipUnless(NIGHTLY, "BATON_NIGHTLY is not set: preemption by the engine's own choice "
                         "of kernel set is in bits_test and window_test")
    def test_swapped_is_computed_again_is_undisturbed(self):
        for case in self.cases("bf16", "f32"):
            with self.cluster(*case) as cluster:
                expected = bits(cluster, together=False, requests=LONG_ANSWERS)
            # 24 blocks hold the longest alone, and three or four windows.
            for preemption in ("recompute", "swap"):
                tight = dict(block_size=16, num_blocks=24, preemption=preemption)
                with self.subTest(case, by=preemption), self.cluster(*case, **tight) as cluster:
                    got = bits(cluster, together=True, requests=LONG_ANSWERS * 3)
                    urls = [worker["metrics_url"] for worker in cluster.workers()]
                    preempted = sum(metric_sum(u, "baton_preemptions_total") for u in urls)
                    swapped = sum(metric_sum(u, "baton_swapped_sequences_total") for u in urls)
                    self.assertEqual(got, expected * 3)
                    self.assertGreater(preempted, 0, "the claim was not tried")
                    self.assertEqual(swapped > 0, preemption == "swap")


if __name__ == "__main__":
    BATON = sys.argv.pop(1)
    unittest.main(verbosity=2)
