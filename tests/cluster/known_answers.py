"""Clients that know every answer: sampled, seeded, streamed, compared token by token."""
import collections
import concurrent.futures
import dataclasses
import http.client
import random
import threading
import time

from api_client import HttpError

SILENCE_S = 60  # A stream without an event for so long hangs.
WORDS = ("In the beginning God created the heaven and the earth . And the earth was without form "
         "and void and darkness was upon the face of the deep").split()


def make_requests(count, seed=1, long_tokens=600, max_tokens=120):
    """Prompts of mixed lengths with answers of mixed lengths, temperature 0.8, seeded."""
    draw = random.Random(seed)
    requests = []
    for i in range(count):
        is_long = i % 3 == 2  # Several chunks of prefill, so that a transfer takes a while.
        num_words = draw.randrange(long_tokens // 2, long_tokens) if is_long else draw.randrange(3, 60)
        prompt = " ".join(draw.choice(WORDS) for _ in range(num_words))
        requests.append(dict(prompt=f"{i} {prompt}", temperature=0.8, seed=1000 + i,
                             max_tokens=draw.randrange(max_tokens // 3, max_tokens),
                             ignore_eos=True))
    return requests


@dataclasses.dataclass
class Outcome:
    """One request as its client saw it."""
    kind: str         # ok, error (clear, from the router), broken (no router), wrong, hung, left
    detail: str
    began: float
    times: list       # Of the tokens.
    ended: float
    num_wrong: int = 0       # Tokens that are not the fault-free ones.
    num_duplicated: int = 0  # Tokens beyond the end, or after the last one.


class KnownAnswers:
    def __init__(self, cluster, requests, clients=8):
        """Asks for every answer once; the cluster must be free of faults."""
        self.requests = requests

        def ask(request):
            choice = cluster.post("/v1/completions", return_token_ids=True, **request)["choices"][0]
            assert choice["finish_reason"] == "length", choice
            return choice["token_ids"], choice["text"]
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            self.answers = list(pool.map(ask, requests))

    def ask(self, cluster, index, leave_after=None):
        """Streams a request and judges it; leaves after so many tokens if asked to."""
        expected, text = self.answers[index]
        outcome = Outcome("ok", "", time.monotonic(), [], 0)
        tokens, pieces, finish = [], [], None
        try:
            for chunk in cluster.open_stream("/v1/completions", timeout=SILENCE_S,
                                             return_token_ids=True, **self.requests[index]):
                if "error" in chunk:
                    outcome.kind, outcome.detail = "error", str(chunk["error"])
                    break
                for choice in chunk["choices"]:
                    tokens += choice.get("token_ids") or []
                    pieces.append(choice["text"])
                    finish = finish or choice["finish_reason"]
                    outcome.times += [chunk["at"]] * len(choice.get("token_ids") or [])
                if leave_after is not None and len(tokens) >= leave_after:
                    outcome.kind = "left"
                    break
        except HttpError as error:
            outcome.kind = "error" if error.code in (429, 503) else "wrong"
            outcome.detail = str(error)
        except TimeoutError as error:
            outcome.kind, outcome.detail = "hung", str(error)
        except (OSError, http.client.HTTPException, AssertionError) as error:
            outcome.kind, outcome.detail = "broken", repr(error)
        outcome.ended = time.monotonic()
        outcome.num_wrong = sum(a != b for a, b in zip(tokens, expected))
        outcome.num_duplicated = max(0, len(tokens) - len(expected))
        is_whole = outcome.kind == "ok"
        if outcome.num_wrong or outcome.num_duplicated:
            outcome.kind = "wrong"
            outcome.detail = f"request {index}: {tokens} instead of {expected}"
        elif is_whole and (tokens != expected or "".join(pieces) != text or finish != "length"):
            outcome.kind = "wrong"
            outcome.detail = (f"request {index}: {len(tokens)} of {len(expected)} tokens, finish "
                              f"{finish}, text {''.join(pieces)!r} instead of {text!r}")
        return outcome


class Load:
    """Clients that ask one request after the other until they are told to stop."""

    def __init__(self, cluster, known, clients=6, seed=0, leave=0.0):
        self.cluster, self.known, self.leave = cluster, known, leave
        self.outcomes = []  # Grows; the order is that of the ends.
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(random.Random(f"{seed} {i}"),),
                                         daemon=True) for i in range(clients)]
        self.live = {}  # Client thread -> since when its request runs.

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def run(self, draw):
        while not self.stopping.is_set():
            index = draw.randrange(len(self.known.requests))
            leave_after = draw.randrange(8) if draw.random() < self.leave else None
            outcome = self.known.ask(self.cluster, index, leave_after)
            self.outcomes.append(outcome)
            if outcome.kind in ("error", "broken"):
                self.stopping.wait(0.05)  # Not a flood of refused connections.

    def stop(self, seconds=120):
        """Lets the open requests end; their outcomes. A thread that does not end is a hung one."""
        self.stopping.set()
        deadline = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0, deadline - time.monotonic()))
        for thread in self.threads:
            if thread.is_alive():
                self.outcomes.append(Outcome("hung", "did not end", 0, [], time.monotonic()))
        return self.outcomes

    def kinds(self):
        return dict(collections.Counter(outcome.kind for outcome in self.outcomes))

    def failures(self, allowed=("ok", "left")):
        """The outcomes of other kinds, for an assertion to print."""
        return [f"{o.kind} after {len(o.times)} tokens and {o.ended - o.began:.1f} s: {o.detail[:400]}"
                for o in self.outcomes if o.kind not in allowed]
