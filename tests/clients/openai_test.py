#!/usr/bin/env python3
"""The official openai client, unmodified, against a cluster.

Usage (with the Python of the tools' environment): openai_test.py PATH_OF_BATON TOOLS
"""
import pathlib
import sys
import unittest

import openai

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from running_cluster import RunningCluster  # noqa: E402

BATON = None
TEXT = "The LORD is my shepherd;"
CHAT = [{"role": "user", "content": "Hello!"}]


class OpenAiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(
            RunningCluster(BATON, "openai", served_model_name="kjv", num_blocks=512))
        cls.client = cls.enterClassContext(openai.OpenAI(
            base_url=cls.cluster.url + "/v1", api_key="none", max_retries=0, timeout=60))

    def complete(self, **more):
        return self.client.completions.create(
            **{"model": "kjv", "prompt": TEXT, "max_tokens": 16, "temperature": 0, **more})

    def chat(self, **more):
        return self.client.chat.completions.create(
            **{"model": "kjv", "messages": CHAT, "max_tokens": 24, "temperature": 0, **more})

    def test_models_list_names_the_served_model(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["kjv"])
        self.assertEqual(self.client.models.retrieve("kjv").id, "kjv")

    def test_completion_continues_the_psalm(self):
        answer = self.complete()
        self.assertEqual(answer.object, "text_completion")
        self.assertTrue(answer.id.startswith("cmpl-"))
        self.assertIn("I shall not want", answer.choices[0].text)
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 16)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 16)

    def test_streamed_completion_is_the_same_text_in_pieces(self):
        chunks = list(self.complete(stream=True, stream_options={"include_usage": True}))
        text = "".join(c.choices[0].text for c in chunks if c.choices)
        self.assertEqual(text, self.complete().choices[0].text)
        self.assertGreater(len(chunks), 2)  # An event holds all that came since the one before.
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 16)
        finishes = [c.choices[0].finish_reason for c in chunks if c.choices]
        self.assertEqual(finishes[-1], "length")
        self.assertEqual(set(finishes[:-1]), {None})

    def test_chat_answers_and_ends_its_turn(self):
        answer = self.chat(max_tokens=64)
        self.assertEqual(answer.object, "chat.completion")
        self.assertTrue(answer.id.startswith("chatcmpl-"))
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertIn("Grace be unto you", answer.choices[0].message.content)
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_streamed_chat_is_the_same_text_in_pieces(self):
        chunks = list(self.chat(stream=True))
        self.assertEqual(chunks[0].object, "chat.completion.chunk")
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        self.assertEqual(text, self.chat().choices[0].message.content)

    def test_chat_content_may_be_text_parts(self):
        parts = [{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]
        self.assertEqual(self.chat(messages=parts).choices[0].message.content,
                         self.chat().choices[0].message.content)

    def test_n_gives_that_many_choices_and_seed_repeats_them(self):
        def texts():
            answer = self.complete(n=3, temperature=1.0, seed=11)
            self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
            return [c.text for c in answer.choices]
        first = texts()
        self.assertGreater(len(set(first)), 1)
        self.assertEqual(texts(), first)

    def test_prompt_list_gives_a_choice_per_prompt(self):
        answer = self.complete(prompt=[TEXT, "In the beginning"])
        self.assertEqual(len(answer.choices), 2)
        self.assertEqual(answer.choices[0].text, self.complete().choices[0].text)
        self.assertEqual(answer.choices[1].text,
                         self.complete(prompt="In the beginning").choices[0].text)

    def test_completion_logprobs_are_of_the_tokens_returned(self):
        choice = self.complete(logprobs=3, max_tokens=5).choices[0]
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        self.assertEqual(len(choice.logprobs.token_logprobs), 5)
        for logprob, top in zip(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs):
            self.assertGreaterEqual(len(top), 3)
            self.assertAlmostEqual(logprob, max(top.values()), places=5)  # Greedy takes the best.

    def test_chat_logprobs_are_ordered_and_carry_bytes(self):
        content = self.chat(logprobs=True, top_logprobs=2, max_tokens=4).choices[0].logprobs.content
        self.assertEqual(len(content), 4)
        for token in content:
            self.assertEqual(bytes(token.bytes).decode(), token.token)
            self.assertEqual(len(token.top_logprobs), 2)
            self.assertGreaterEqual(token.top_logprobs[0].logprob, token.top_logprobs[1].logprob)

    def test_stop_string_ends_the_text_before_it_also_in_a_stream(self):
        whole = self.complete().choices[0]
        word = whole.text.split()[3]
        stopped = self.complete(stop=[word]).choices[0]
        self.assertEqual(stopped.text, whole.text.split(word)[0])
        self.assertEqual(stopped.finish_reason, "stop")
        text = "".join(c.choices[0].text for c in self.complete(stop=word, stream=True) if c.choices)
        self.assertEqual(text, stopped.text)

    def test_wrong_values_are_400_and_name_their_parameter(self):
        for field, value in (("temperature", -1), ("max_tokens", -3), ("n", 0), ("top_p", 2),
                             ("logprobs", -5), ("stop", ["x"] * 17)):
            with self.subTest(field=field), self.assertRaises(openai.BadRequestError) as error:
                self.complete(**{field: value})
            self.assertEqual(error.exception.param, field)

    def test_unsupported_features_are_400_and_name_their_parameter(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        for field, value in (("tools", [tool]), ("response_format", {"type": "json_object"})):
            with self.subTest(field=field), self.assertRaises(openai.BadRequestError) as error:
                self.chat(**{field: value})
            self.assertEqual(error.exception.param, field)
        self.assertTrue(self.chat(tools=[], response_format={"type": "text"}).choices)

    def test_unknown_model_is_404_and_too_long_a_prompt_is_400(self):
        with self.assertRaises(openai.NotFoundError):
            self.complete(model="gpt-5")
        with self.assertRaises(openai.BadRequestError) as error:
            self.complete(prompt="word " * 5000)
        self.assertIn("2048", error.exception.message)

    def test_closing_a_stream_early_leaves_no_block_held(self):
        stream = self.complete(stream=True, max_tokens=1000, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertEqual(self.cluster.await_quiet(512), [])


if __name__ == "__main__":
    BATON, _ = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main(verbosity=2)
