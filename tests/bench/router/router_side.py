"""What is measured by router_bench.py and its like: a router on its core, workers without a model behind
it, load before it on the others.
"""
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parents[1] / "cluster"))
from api_client import ApiClient  # noqa: E402
from process_cluster import MODEL, await_true  # noqa: E402
from report import row  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
PACE_MS = 20
ANSWER = 16  # Tokens, unless said otherwise.
MODEL_LEN = 262144  # Room for the large prompts in a small vocabulary's tokens.


def cpu_seconds(pid):
    """Of all threads that the process has and had."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def switches(pid):
    """How often threads of the process that live waited for something: another account of what a
    request costs, which does not depend on what else the machine does."""
    return sum(int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status.read_text(), re.M)[1])
               for status in pathlib.Path(f"/proc/{pid}/task").glob("*/status"))


def rss_mb(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


def words():
    """Those of the model's vocabulary that stand for a word."""
    vocab = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    return sorted(token[1:] for token in vocab if token[:1] == "\u0120" and token[1:].isalpha())


def prompt(seed, characters, vocabulary, unknown=0.0):
    """Words at random, so that no two prompts share a prefix; so many of them no tokenizer knows."""
    chosen, size, picks = [], 0, random.Random(seed)
    while size < characters:
        chosen.append(picks.choice(vocabulary))
        if unknown and picks.random() < unknown:
            chosen[-1] = f"{chosen[-1].title()}_{picks.randrange(1000)}-{picks.choice(vocabulary)}"
        size += len(chosen[-1]) + 1
    return " ".join(chosen)[:characters]


class Bench:
    """The programs, the cores, the prompts."""

    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, pathlib.Path(folder)
        cores = sorted(os.sched_getaffinity(0))
        others = cores[1:] or cores
        self.on_router_core = ["taskset", "-c", str(cores[0])]
        self.on_others = ["taskset", "-c", ",".join(map(str, others))]
        self.vocabulary = words()
        self.model = self.folder / "model"
        self.make_model()

    def make_model(self):
        """The shipped model's text, and a length that takes large prompts."""
        self.model.mkdir()
        for file in MODEL.glob("*.json"):
            content = json.loads(file.read_text())
            if file.name == "config.json":
                content["max_position_embeddings"] = MODEL_LEN
            (self.model / file.name).write_text(json.dumps(content))

    def program(self, name):
        path = self.arguments.build / name
        if not path.exists():
            raise RuntimeError(f"{path} is missing; cmake --build {self.arguments.build}")
        return path

    def bodies(self, name, number, characters, answer, unknown=0.0, prefix=""):
        """A file of different requests, which begin with `prefix`."""
        path = self.folder / f"{name}.bodies"
        with open(path, "w") as file:
            for i in range(number):
                file.write(json.dumps({"model": "model", "stream": True, "max_tokens": answer,
                                       "ignore_eos": True, "temperature": 0,
                                       "prompt": prefix + prompt(
                                           f"{name} {i}", characters - len(prefix),
                                           self.vocabulary, unknown)}) + "\n")
        return path

    def load(self, port, bodies, requests, rate, wait=60, first=0, key="", path="/v1/completions"):
        """What the clients saw."""
        done = subprocess.run(
            [*self.on_others, self.program("bench/bench_http_load"), "--port", str(port),
             "--bodies", bodies, "--requests", str(requests), "--rate", str(rate),
             "--wait-s", str(wait), "--first", str(first), "--key", key,
             "--path", path], stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)

    def certificates(self):
        """The folder of `baton certs`."""
        folder = self.folder / "certs"
        for command in ("init", "issue"):
            subprocess.run([self.program("bin/baton"), "certs", command, "--dir", folder],
                           check=True, stdout=subprocess.DEVNULL)
        return folder

    @contextlib.contextmanager
    def mock(self, *options):
        """The workers without a model; their addresses."""
        with ended(subprocess.Popen([*self.on_others, self.program("bench/bench_mock_workers"),
                                     "--pace-ms", str(PACE_MS), "--max-model-len", str(MODEL_LEN),
                                     *map(str, options)], stdout=subprocess.PIPE,
                                    text=True)) as process:
            yield json.loads(process.stdout.readline())

    @contextlib.contextmanager
    def router(self, addresses, *options):
        ready = self.folder / "router.json"
        ready.unlink(missing_ok=True)
        with open(self.folder / "router.log", "ab") as log:
            process = subprocess.Popen(
                [*self.on_router_core, self.program("bin/baton-router"), "--model", self.model,
                 "--prefill", addresses["prefill"], "--decode", addresses["decode"],
                 "--http-port", "0", "--grpc-port", "0", "--ready-file", ready,
                 "--log-level", "warning", *map(str, options)], stdout=log, stderr=log)
        with ended(process):
            await_true(lambda: ready.exists() or process.poll() is not None, 60, "it listens")
            if process.poll() is not None:
                raise RuntimeError((self.folder / "router.log").read_text())
            yield Side(process.pid, json.loads(ready.read_text())["http_url"])


@contextlib.contextmanager
def ended(process):
    """The process, which has ended afterwards."""
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


class Side(ApiClient):
    """A server that is measured."""

    def __init__(self, pid, url):
        self.pid, self.url, self.model = pid, url, "model"
        self.port = int(url.rsplit(":", 1)[1])

    def await_ready(self):
        await_true(lambda: self.request("GET", "/ready", timeout=20)[0] == 200, 60, "it is ready")
        return self


def measured(bench, side, *load, **options):
    """(CPU seconds, what the clients saw)."""
    before = cpu_seconds(side.pid)
    seen = bench.load(side.port, *load, **options)
    return cpu_seconds(side.pid) - before, seen


def num_answered(seen):
    """Requests that got a whole answer."""
    return seen["status"].get("200", 0)


def answered(seen):
    """Per cent of the requests."""
    return 100 * num_answered(seen) / seen["sent"]


def events_of_one(seen):
    return seen["events"] / seen["sent"]


def beside(name, unit, values):
    """A row; the yardstick's value is the limit."""
    own, yardstick = values
    return row(name, own, unit, yardstick or 0, "nginx" if yardstick else "")
