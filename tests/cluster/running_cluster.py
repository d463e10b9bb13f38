"""A real cluster for tests: started by `baton up --detach`, asked over HTTP, stopped by `baton down`.

Standard library only. Every wait has a limit.
"""
import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import time

from api_client import LIMIT_S, ApiClient

MODEL = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "models" / "tiny-kjv"


class RunningCluster(ApiClient):
    """One cluster in build/.../run/NAME. Use as a context manager; logs stay until the next run."""

    def __init__(self, baton, name, **options):
        self.baton_path = pathlib.Path(baton).resolve()
        self.dir = self.baton_path.parents[1] / "run" / name
        self.options = {"http": 0, "grpc": 0, "model": MODEL, **options}

    def __enter__(self):
        if self.dir.exists():
            self.baton("down", check=False)
            shutil.rmtree(self.dir)
        self.dir.parent.mkdir(exist_ok=True)
        arguments = []
        for key, value in self.options.items():
            arguments.append("--" + key.replace("_", "-"))
            if value is not True:  # A flag has no value.
                arguments.append(str(value))
        self.baton("up", "--detach", *arguments)
        state = json.loads((self.dir / "state.json").read_text())
        router = next(s for s in state["servers"] if s["role"] == "router")
        self.url, self.grpc = router["http_url"], router["address"]
        self.supervisor = state["supervisor"]["pid"]
        self.model = self.get("/v1/models")["data"][0]["id"]
        return self

    def __exit__(self, *_):
        self.baton("down", check=False)

    def baton(self, command, *arguments, check=True):
        done = subprocess.run([self.baton_path, command, "--dir", self.dir, *arguments],
                              capture_output=True, text=True, timeout=LIMIT_S)
        if check and done.returncode != 0:
            raise AssertionError(f"baton {command}: {done.stdout}{done.stderr}")
        return done

    def log(self, name):
        return (self.dir / "logs" / f"{name}.log").read_text(errors="replace")

    def status(self):
        done = self.baton("status", "--json", check=False)
        return json.loads(done.stdout)

    def workers(self, role=None):
        return [w for w in self.status()["workers"] if role in (None, w["role"])]

    def await_quiet(self, total, seconds=30, dead=()):
        """Until every worker is healthy and holds only free and cached blocks; the last status of
        those that are not. `dead`: addresses of workers that nobody starts again: they stay
        unhealthy."""
        def is_quiet(worker):
            if worker["address"] in dead:
                return not worker["healthy"]
            blocks = worker["blocks"]
            return (worker["healthy"] and blocks["free"] + blocks["cached"] == total and
                    not worker["running"] and not worker["waiting"])
        deadline = time.monotonic() + seconds
        while True:
            loud = [w for w in self.workers() if not is_quiet(w)]
            if not loud or time.monotonic() > deadline:
                return loud
            time.sleep(0.05)


def at_once(calls):
    """Runs the calls in threads; their results, or the exceptions they raised, in order."""
    def guarded(call):
        try:
            return call()
        except Exception as error:  # noqa: BLE001: the test judges what came.
            return error
    with concurrent.futures.ThreadPoolExecutor(max(1, len(calls))) as pool:
        return list(pool.map(guarded, calls))
