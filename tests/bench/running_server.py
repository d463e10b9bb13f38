"""A server that somebody started, as a peer: whatever speaks OpenAI's API of completions and has
the same model, such as vLLM. Standard library only.
"""
import argparse
import http.client
import sys
import urllib.parse

from programs import ROOT
from streams import Load, prompt_of

sys.path.insert(0, str(ROOT / "tests" / "cluster"))
from api_client import ApiClient, HttpError  # noqa: E402

SAME_MODEL = Load(1, 4, 16, 1)  # Answers that tell whether two servers have the same weights.


class PeerError(RuntimeError):
    """A server does not answer as it must; the text names it."""


def asked(name, server, call):
    """What `call()` of this server returns; PeerError for all that a network or a server can do."""
    try:
        return call()
    except (OSError, ValueError, LookupError, TypeError, AssertionError, HttpError,
            http.client.HTTPException) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise PeerError(f"{name} at {server.url}: {reason}") from error


def first_tokens(server):
    """The text of the first greedy token after some prompts."""
    return [server.post("/v1/completions", prompt=prompt_of(SAME_MODEL, f"same model {i}"),
                        max_tokens=1, temperature=0, ignore_eos=True)["choices"][0]["text"]
            for i in range(SAME_MODEL.requests)]


def check_same_model(name, server, expected):
    """Rounding may change one token of a model; weights of another model change them all."""
    got = asked(name, server, lambda: first_tokens(server))
    if not any(a == b for a, b in zip(got, expected)):
        raise PeerError(f"{name} at {server.url}: its model {server.model} is another one: first "
                        f"tokens {got}, not {expected}")


class RunningServer(ApiClient):
    """Named by the user as NAME=URL."""

    def __init__(self, text):
        self.name, _, url = text.partition("=")
        parts = urllib.parse.urlparse(url.rstrip("/"))
        if not self.name or parts.scheme != "http" or not parts.netloc or \
                parts.path not in ("", "/v1"):
            raise argparse.ArgumentTypeError(f"{text}: must be NAME=http://HOST:PORT")
        self.url = f"http://{parts.netloc}"

    def find_model(self):
        """The first model that it says it serves."""
        self.model = asked(self.name, self, lambda: self.get("/v1/models")["data"][0]["id"])
