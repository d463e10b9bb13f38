#!/usr/bin/env python3
"""The request shapes that load generators and evaluation harnesses send, and curl.

Usage: request_shapes_test.py PATH_OF_BATON TOOLS
"""
import json
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from running_cluster import RunningCluster  # noqa: E402

BATON = None
IDS = [0, 310, 420, 530, 640, 750, 860, 970]


class RequestShapesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(RunningCluster(BATON, "shapes", num_blocks=512))

    def curl(self, *arguments):
        done = subprocess.run(["curl", "-sS", "--max-time", "60", *arguments],
                              capture_output=True, text=True, timeout=90)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def curl_code(self, *arguments):
        return int(self.curl("-o", "/dev/null", "-w", "%{http_code}", *arguments))

    # guidellm, text and chat: null fields, both limits at once, content parts.
    def test_guidellm_text_stream_has_text_and_usage(self):
        chunks = self.cluster.stream(
            "/v1/completions", prompt="And God said", max_tokens=12, max_completion_tokens=12,
            stop=None, ignore_eos=True, stream_options={"include_usage": True})
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 12)
        self.assertEqual(chunks[-1]["choices"], [])

    def test_guidellm_chat_stream_has_text_and_usage(self):
        chunks = self.cluster.stream(
            "/v1/chat/completions", max_tokens=12, max_completion_tokens=12, stop=None,
            ignore_eos=True, stream_options={"include_usage": True},
            messages=[{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}])
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 12)
        text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks[:-1])
        self.assertTrue(text)

    def test_vllm_bench_serve_stream_counts_its_tokens(self):
        chunks = self.cluster.stream(
            "/v1/completions", prompt="And God said", temperature=0.0, repetition_penalty=1.0,
            max_tokens=8, logprobs=None, ignore_eos=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True})
        counts = [c["usage"]["completion_tokens"] for c in chunks]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[-1], 8)

    # lm-evaluation-harness, local-completions: lists of ids, echo, one token more than asked for.
    def score(self, ids, **more):
        return self.cluster.post("/v1/completions", prompt=ids, temperature=0, max_tokens=1,
                                 logprobs=1, seed=1234, echo=True, **more)["choices"]

    def test_lm_eval_loglikelihood_of_id_lists_is_aligned(self):
        choices = self.score([IDS, IDS[:5]])
        for choice, ids in zip(sorted(choices, key=lambda c: c["index"]), (IDS, IDS[:5])):
            logprobs = choice["logprobs"]
            self.assertEqual(len(logprobs["token_logprobs"]), len(ids) + 1)
            self.assertIsNone(logprobs["token_logprobs"][0])
            self.assertIsNone(logprobs["top_logprobs"][0])
            for logprob, top in zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:]):
                self.assertLessEqual(logprob, max(top.values()) + 1e-6)

    def test_lm_eval_scores_do_not_depend_on_the_batch_or_on_a_second_time(self):
        alone = self.score([IDS])[0]["logprobs"]["token_logprobs"]
        together = self.score([IDS, IDS[:5], IDS])
        self.assertEqual(together[0]["logprobs"]["token_logprobs"], alone)
        self.assertEqual(together[2]["logprobs"]["token_logprobs"], alone)

    def test_echo_without_new_tokens_scores_the_prompt_alone(self):
        choice = self.cluster.post("/v1/completions", prompt=IDS, max_tokens=0, logprobs=0,
                                   echo=True)["choices"][0]
        self.assertEqual(len(choice["logprobs"]["token_logprobs"]), len(IDS))

    def test_lm_eval_generate_until_stops_before_the_string(self):
        answer = self.cluster.post("/v1/completions", prompt=[IDS], max_tokens=40, temperature=0,
                                   stop=["\n", "Question:"], seed=1234)
        self.assertNotIn("\n", answer["choices"][0]["text"])

    def test_return_token_ids_gives_what_was_fed_and_made(self):
        choice = self.cluster.post("/v1/completions", prompt=IDS, max_tokens=3,
                                   return_token_ids=True)["choices"][0]
        self.assertEqual(choice["prompt_token_ids"], IDS)
        self.assertEqual(len(choice["token_ids"]), 3)

    def test_tokenize_and_detokenize_are_inverse(self):
        text = "In the beginning God created the heaven and the earth. \u00e9\u4e16 \U0001f600"
        tokens = self.cluster.post("/tokenize", prompt=text)["tokens"]
        self.assertEqual(tokens[0], 0)
        back = self.cluster.post("/detokenize", tokens=tokens[1:])
        self.assertEqual(back["prompt"], text)

    # curl.
    def test_curl_streams_events_up_to_done(self):
        body = json.dumps({"model": self.cluster.model, "prompt": "In the beginning",
                           "max_tokens": 8, "stream": True, "ignore_eos": True})
        text = self.curl("-N", self.cluster.url + "/v1/completions", "-H",
                         "Content-Type: application/json", "-d", body)
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        self.assertEqual(events[-1], "[DONE]")
        for event in events[:-1]:
            self.assertEqual(json.loads(event)["object"], "text_completion")

    def test_curl_finds_every_plain_page(self):
        for page in ("/health", "/ready", "/v1/models", "/version", "/metrics", "/status"):
            with self.subTest(page=page):
                self.assertEqual(self.curl_code(self.cluster.url + page), 200)
        self.assertIn("baton_requests_total", self.curl(self.cluster.url + "/metrics"))

    def test_curl_gets_the_right_code_for_every_mistake(self):
        url = self.cluster.url
        post = ["-H", "Content-Type: application/json", "-d"]
        self.assertEqual(self.curl_code(url + "/nowhere"), 404)
        self.assertEqual(self.curl_code(url + "/v1/completions"), 405)
        for body in ("{", "[]", "null", '{"model": 7}', '{"prompt": "x", "max_tokens": "many"}',
                     '{"prompt": [1.5]}', '{"prompt": [99999999]}', '{"prompt": "\\ud800"}'):
            with self.subTest(body=body):
                self.assertEqual(self.curl_code(url + "/v1/completions", *post, body), 400)
        large = json.dumps({"prompt": "x" * (5 << 20)})
        done = subprocess.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", *post, "@-",
                               url + "/v1/completions"], input=large, capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.stdout, "413")


if __name__ == "__main__":
    BATON, _ = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
