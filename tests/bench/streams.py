"""Streams in closed loop against an OpenAI server: what a client sees of TTFT and of the time
between tokens. The same work as bench_streams does without a server. Standard library only.
"""
import concurrent.futures
import random
import time

FIRST_WORD = 259  # Ids from here on are words of random_model.h's tokenizer: each has text.


class Load:
    """`streams` clients at once; each asks `requests` times, the next when the last has ended."""

    def __init__(self, streams, requests, prompt_tokens, answer_tokens, vocab=32000):
        self.streams, self.requests = streams, requests
        self.prompt_tokens, self.answer_tokens, self.vocab = prompt_tokens, answer_tokens, vocab

    @property
    def name(self):
        return "1 stream" if self.streams == 1 else f"{self.streams} streams"


def percentile(values, share):
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1) + 0.5)]


def prompt_of(load, seed):
    words = random.Random(seed)
    return [words.randrange(FIRST_WORD, load.vocab) for _ in range(load.prompt_tokens)]


def ask(client, load, seed):
    """One request: the times, from its start, at which text came, in seconds."""
    prompt, times, tokens = prompt_of(load, seed), [], 0
    start = time.monotonic()
    for chunk in client.open_stream("/v1/completions", timeout=600, prompt=prompt,
                                    max_tokens=load.answer_tokens, temperature=0, ignore_eos=True,
                                    stream_options={"include_usage": True}):
        if chunk.get("choices") and chunk["choices"][0].get("text"):
            times.append(chunk["at"] - start)
        tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    # A token that is a part of a character has no text of its own.
    least = load.answer_tokens - max(1, load.answer_tokens // 10)
    if tokens != load.answer_tokens or len(times) < least:
        raise AssertionError(f"{len(times)} pieces of text, {tokens} tokens said, "
                             f"{load.answer_tokens} asked for: times between tokens cannot be told")
    return times


class Seen:
    """What the clients saw of one run of a load."""

    def __init__(self, answers, seconds):
        self.ttft = [times[0] for times in answers]
        self.requests = [times[-1] for times in answers]
        gaps = [[b - a for a, b in zip(times, times[1:])] for times in answers]
        self.gaps = [gap for row in gaps for gap in row]
        self.second = [row[0] for row in gaps]  # First to second token: the handoff's.
        self.seconds = seconds

    def figures(self, load):
        """{what: (value, unit)}, in the names of bench_streams."""
        tokens = load.streams * load.requests * load.answer_tokens
        p50, p99 = (percentile(self.gaps, share) for share in (0.5, 0.99))
        return {"TTFT p50": (1e3 * percentile(self.ttft, 0.5), "ms"),
                "inter-token p50": (1e3 * p50, "ms"),
                "inter-token p99": (1e3 * p99, "ms"),
                "inter-token p99 : p50": (p99 / p50, "x"),
                "request p50": (1e3 * percentile(self.requests, 0.5), "ms"),
                "output": (tokens / self.seconds, "tok/s")}


def run_load(client, load, seed):
    """No two prompts of different seeds share a prefix, so no cache helps."""
    def loop(stream):
        return [ask(client, load, f"{seed} {stream} {i}") for i in range(load.requests)]
    with concurrent.futures.ThreadPoolExecutor(load.streams) as pool:
        start = time.monotonic()
        answers = [answer for loops in pool.map(loop, range(load.streams)) for answer in loops]
        return Seen(answers, time.monotonic() - start)


def better(what, new, old):
    """Of two values of a figure."""
    return max(new, old) if what == "output" else min(new, old)
