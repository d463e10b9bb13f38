"""The built benchmark programs, where their models and other systems are kept, and a cluster of
the built servers without proxies on its links."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from process_cluster import ProcessCluster  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]


def cache_folder():
    """BATON_BENCH_CACHE, else baton-bench in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("BATON_BENCH_CACHE") or pathlib.Path(cache) / "baton-bench")


def add_options(parser, models=("125M", "1B")):
    """Those that every benchmark of whole systems has; from now on SIGTERM ends the servers too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--model", choices=models, default="1B")
    parser.add_argument("--models", type=pathlib.Path, default=cache_folder() / "models",
                        help="folder that keeps the models (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--quick", action="store_true",
                        help="seconds: 125M, each once, short prompts and answers")
    parser.add_argument("--json", action="store_true", help="for machines")


def bench(build, name, *arguments):
    """The rows of a benchmark program by name; RuntimeError says how to build it."""
    program = build / "bench" / f"bench_{name}"
    if not program.exists():
        raise RuntimeError(f"{program} is missing; cmake --build {build} --target bench_{name}")
    return rows_of(program, *arguments)


def rows_of(program, *arguments):
    """The rows of a run of a benchmark program by name."""
    done = subprocess.run([program, *map(str, arguments), "--json"], text=True, check=False,
                          stdout=subprocess.PIPE)
    if done.returncode != 0:
        raise RuntimeError(f"{program} ended with {done.returncode}")
    return {row["name"]: row for row in json.loads(done.stdout)["rows"]}


def roofs(build, threads):
    """(read bandwidth in GB/s, highest peak of float products in Gop/s) of all threads, now."""
    rows = bench(build, "roofs", "--quick", "--threads", threads)
    of_all = [row for name, row in rows.items() if name.endswith(f", {threads} threads")]
    return (max(row["value"] for row in of_all if row["unit"] == "GB/s"),
            max(row["value"] for row in of_all
                if row["unit"] == "Gop/s" and not row["name"].startswith("int8")))


def peak_bytes(pid):
    """Of resident memory of a process, so far."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


class BenchCluster(ProcessCluster):
    """One prefill and one decode worker that share the machine: each has all its threads, and those
    of the prefill worker yield, as is its default."""

    def __init__(self, build, model, threads):
        for program in ("baton-prefill", "baton-decode", "baton-router"):
            if not (build / "bin" / program).exists():
                raise RuntimeError(f"{build / 'bin' / program} is missing; cmake --build {build}")
        super().__init__(build / "bin", "bench", prefill=1, decode=1,
                         worker={"model": model, "threads": threads, "compute_dtype": "auto",
                                 "chunk_tokens": 512},
                         router={"model": model})

    def start(self):
        for server in self.workers:
            server.launch()
        for server in self.workers:
            server.await_start()
            self.router.arguments += [f"--{server.role}", server.address]
        self.router.launch()
        self.router.await_start()
        self.url = self.router.ready["http_url"]
        self.await_ready()
        self.model = self.get("/v1/models")["data"][0]["id"]

    def kv_pool_bytes(self, server):
        """From the line that a worker logs when its model is loaded."""
        log = (self.dir / "logs" / f"{server.name}.log").read_text()
        if found := re.search(r"\bpool_bytes=(\d+)", log):
            return int(found.group(1))
        raise RuntimeError(f"{server.name} did not log pool_bytes")

