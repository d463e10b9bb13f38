"""Streams of the openai client, unmodified and without its retries, that never pause: each answer
is compared with the one that was known before."""
import collections
import threading
import time

import openai


class Load:
    """num_long streams of answers of long_tokens, and num_short of short ones with a pause between
    them, on connections that are kept. `answers`: what Answers made."""

    def __init__(self, url, key, answers, num_long, num_short):
        self.url, self.answers = url, answers
        self.key = key              # What requests from now on show.
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.seconds = collections.defaultdict(list)  # Of answers, by kind.
        self.failed, self.changed = [], []
        self.in_outage = []         # Failed while `outage` was set.
        self.outage = False
        self.longest_pause = 0.0
        self.shown = {}             # The key of each thread's request.
        self.threads = [threading.Thread(target=self.run, args=(kind, number))
                        for kind, count in (("long", num_long), ("short", num_short))
                        for number in range(count)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def count(self):
        with self.lock:
            return sum(len(kind) for kind in self.seconds.values())

    def shows(self, key):
        with self.lock:
            return key in self.shown.values()

    def run(self, kind, number):
        client = openai.OpenAI(base_url=self.url, api_key="-", max_retries=0, timeout=300)
        prompts = list(self.answers[kind])
        while not self.stopping.is_set():
            with self.lock:
                client.api_key = self.shown[threading.get_ident()] = self.key
            number += 1
            self.ask(client, kind, prompts[number % len(prompts)])
            if kind == "short":
                self.stopping.wait(1 + number % 3)

    def ask(self, client, kind, prompt):
        begin = last = time.monotonic()
        text, finish, pause = "", None, 0.0
        try:
            for text_piece, finish in stream(client, prompt, self.answers[kind][prompt][0]):
                text += text_piece
                pause, last = max(pause, time.monotonic() - last), time.monotonic()
        except Exception as error:  # Whatever it is, a request has failed.
            cause = error.__cause__ or error
            with self.lock:
                (self.in_outage if self.outage else self.failed).append(
                    (time.strftime("%H:%M:%S"), kind, len(text), repr(error)[:200], repr(cause)[:200]))
            time.sleep(0.2)
            return
        with self.lock:
            self.seconds[kind].append(time.monotonic() - begin)
            self.longest_pause = max(self.longest_pause, pause)
            if (text, finish) != self.answers[kind][prompt][1]:
                self.changed.append((time.strftime("%H:%M:%S"), kind, prompt, len(text), finish))


def stream(client, prompt, max_tokens):
    """(text, finish reason) of each event of a completion."""
    pieces = client.completions.create(model="tiny-kjv", prompt=prompt, max_tokens=max_tokens,
                                       temperature=0, stream=True, extra_body={"ignore_eos": True})
    for piece in pieces:
        if piece.choices:
            yield piece.choices[0].text, piece.choices[0].finish_reason


def known_answers(url, key, prompts, long_tokens, short_tokens):
    """{kind: {prompt: (max_tokens, (text, finish reason))}}, asked one at a time."""
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=300)
    answers = {}
    for kind, max_tokens in (("long", long_tokens), ("short", short_tokens)):
        answers[kind] = {}
        for prompt in prompts:
            pieces = list(stream(client, prompt, max_tokens))
            answers[kind][prompt] = max_tokens, ("".join(text for text, _ in pieces), pieces[-1][1])
    return answers
