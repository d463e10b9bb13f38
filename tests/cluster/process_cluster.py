"""A cluster whose processes a test starts, kills and restarts one by one, with proxies on its links.

The router reaches each worker through a control proxy, and prefill workers reach each decode worker
through a data proxy. A restarted server keeps its ports. The folder has the form of `baton up`'s, so
that `baton status` and `baton audit` work on it. Standard library only.
"""
import atexit
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

from api_client import LIMIT_S, ApiClient, metric_samples, metric_sum
from fault_proxy import ProxyLoop

MODEL = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "models" / "tiny-kjv"
START_LIMIT_S = 60
PRESENT_STATES = ("free", "cached")  # What a block without an owner is.


def await_true(condition, seconds, what, pause=0.02):
    """The condition's first true value; AssertionError if it does not come in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds} s still not: {what() if callable(what) else what}")
        time.sleep(pause)
    return value


def process_state(pid):
    """The state letter of /proc ("T" = stopped), or "" when there is no such process."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def processes_of(folder):
    """The command lines that name a folder."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(word.startswith(str(folder)) for word in words):
            found.append(" ".join(words))
    return found


def is_left(run_dir):
    """No process names the folder of a cluster, nor has its lock: one that ends loses its command line
    before its files."""
    with open(run_dir / "lock", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return not processes_of(run_dir)


def identity(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": pid, "start_ticks": int(fields[19]), "boot_id": boot}


def flags(options):
    return [text for key, value in options.items()
            for text in ("--" + key.replace("_", "-"), str(value))]


class Server:
    """One program of the cluster: the process of the moment and the ports of all its lives."""

    def __init__(self, cluster, role, index, arguments):
        self.cluster, self.role = cluster, role
        self.bin = cluster.bin  # Of its next life.
        self.name = role if role == "router" else f"{role}-{index}"
        self.arguments = arguments
        self.ports = ["--http-port", "0", "--grpc-port", "0"] if role == "router" else []
        self.process = None
        self.ready = {}
        self.control = None  # A proxy,
        self.data_of = []    # and one of each rank.
        self.lives = 0

    @property
    def pid(self):
        return self.process.pid

    @property
    def data(self):
        """The proxy before the K/V of the first rank, if there is one."""
        return self.data_of[0] if self.data_of else None

    @property
    def address(self):
        """As the router knows it."""
        return self.control.address if self.control else self.ready["address"]

    def launch(self, fail_point=None):
        """Starts the process, which may act on a fail point ("name:action:count")."""
        assert self.process is None or self.process.poll() is not None, f"{self.name} runs"
        ready_file = self.cluster.dir / "ready" / f"{self.name}.json"
        ready_file.unlink(missing_ok=True)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BATON_FAIL")}
        if fail_point:
            environment.update(BATON_FAIL_POINT=fail_point,
                               BATON_FAIL_LOG=str(self.cluster.fail_log))
        self.lives += 1
        with open(self.cluster.dir / "logs" / f"{self.name}.log", "ab") as log:
            log.write(f"---- life {self.lives} {fail_point or ''}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                [self.bin / f"baton-{self.role}", *self.options(), "--ready-file", ready_file],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def options(self):
        """Of the next life."""
        return [*self.arguments, *self.ports]

    def await_start(self):
        """Until it listens; from now on it has these ports, through all lives."""
        ready_file = self.cluster.dir / "ready" / f"{self.name}.json"

        def read():
            if self.process.poll() is not None:
                raise AssertionError(f"{self.name} ended with {self.process.returncode} at its "
                                     f"start; see {self.cluster.dir}/logs/{self.name}.log")
            try:
                ready = self.told(json.loads(ready_file.read_text()))
                return ready if ready.get("pid", self.pid) == self.pid else None
            except (OSError, ValueError):
                return None
        self.ready = await_true(read, START_LIMIT_S, f"{self.name} listens")
        port = {key: self.ready[key].split("/metrics")[0].rsplit(":", 1)[1]
                for key in ("address", "metrics_url", "http_url") if self.ready.get(key)}
        if self.role == "router":
            self.ports = ["--http-port", port["http_url"], "--grpc-port", port["address"],
                          "--ops-port", port["metrics_url"]]
        else:
            self.ports = ["--port", port["address"], "--metrics-port", port["metrics_url"],
                          "--data-port", ",".join(address.rsplit(":", 1)[1]
                                                  for address in self.ready["data_addresses"])]
            if self.control:
                self.control.target = self.ready["address"]
            for proxy, target in zip(self.data_of, self.ready["data_addresses"]):
                proxy.target = target
        self.cluster.save_state()

    def told(self, ready):
        """What the ready file says."""
        return ready

    def signal(self, number):
        self.process.send_signal(number)

    def await_exit(self, seconds=20):
        """The exit code; negative = the signal that ended it."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {seconds} s") from None

    def end(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    def last_log(self):
        """What the process of the last life has written."""
        log = (self.cluster.dir / "logs" / f"{self.name}.log").read_text(errors="replace")
        return log.rsplit("---- life ", 1)[1]

    def metric(self, name, **labels):
        """The sum of a metric of this process over the samples with these labels."""
        return metric_sum(self.ready["metrics_url"], name, **labels)

    def blocks(self):
        """Blocks by state, from the worker's own metrics."""
        return {text.split('"')[1]: int(value)
                for text, value in metric_samples(self.ready["metrics_url"], "baton_kv_blocks")}


class ProcessCluster(ApiClient):
    """Use as a context manager. Logs stay in build/.../run/NAME until the next run."""

    server_class = Server

    def __init__(self, bin_dir, name, prefill=2, decode=2, worker=None, router=None, prefill_tp=1,
                 decode_tp=1):
        """`worker` and `router` are options of the programs by name, beyond the defaults here;
        a tp is the ranks of each worker."""
        self.decode_tp = decode_tp
        self.bin = pathlib.Path(bin_dir).resolve()
        self.dir = self.bin.parent / "run" / name
        self.fail_log = self.dir / "faults.log"
        self.lock = threading.Lock()
        defaults = {"model": MODEL, "drain_timeout_s": 20}
        worker = {**defaults, "threads": 1, "num_blocks": 512, "chunk_tokens": 128, **(worker or {})}
        self.prefill = [self.server_class(self, "prefill", i, flags({**worker, "tp": prefill_tp}))
                        for i in range(prefill)]
        self.decode = [self.server_class(self, "decode", i, flags({**worker, "tp": decode_tp}))
                       for i in range(decode)]
        self.workers = self.prefill + self.decode
        # On a slow machine much waits for long: no test is to depend on how long.
        router = {**defaults, "max_queue_wait_s": 0, **(router or {})}
        self.router = self.server_class(self, "router", 0, flags(router))

    def __enter__(self):
        shutil.rmtree(self.dir, ignore_errors=True)
        for folder in ("logs", "ready"):
            (self.dir / folder).mkdir(parents=True)
        atexit.register(self.end)
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def start(self):
        self.proxies = ProxyLoop()
        self.proxies.__enter__()
        for server in self.workers:
            server.control = self.proxies.proxy()
            self.router.arguments += [f"--{server.role}", server.control.address]
        for server in self.decode:
            server.data_of = [self.proxies.proxy() for _ in range(self.decode_tp)]
            server.arguments += ["--advertise-data-address",
                                 ",".join(proxy.address for proxy in server.data_of)]
        for server in self.workers:
            server.launch()
        for server in self.workers:
            server.await_start()
        self.router.launch()
        self.router.await_start()
        self.url = self.router.ready["http_url"]
        self.await_ready()
        self.model = self.get("/v1/models")["data"][0]["id"]

    def end(self):
        atexit.unregister(self.end)
        for server in [self.router, *self.workers]:
            server.end()
        if proxies := self.__dict__.pop("proxies", None):
            proxies.__exit__()

    def await_ready(self):
        """Until a token has come from end to end."""
        def is_ready():
            try:
                return self.request("GET", "/ready", timeout=5)[0] == 200
            except OSError:
                return False
        await_true(is_ready, START_LIMIT_S, "the router is ready")

    def said_of(self, server, timeout=LIMIT_S):
        """What the router says of a worker."""
        workers = self.get("/status", timeout=timeout)["workers"]
        return next(w for w in workers if w["address"] == server.address)

    def await_healthy(self, server, seconds=30):
        """Until the router uses this life of the worker."""
        def is_healthy():
            said = self.said_of(server)
            return said["healthy"] and self.is_this_life(server, said["incarnation"])
        await_true(is_healthy, seconds, lambda: f"{server.name} is used: {self.said_of(server)}")

    @staticmethod
    def is_this_life(server, incarnation):
        said = server.ready.get("incarnation")
        said = f"{said:016x}" if isinstance(said, int) else str(said)
        return said.lower().removeprefix("0x").zfill(16) == incarnation

    def restart(self, server, fail_point=None):
        """Ends the process as `baton down` would if it still runs; starts it on the same ports."""
        if server.process.poll() is None:
            server.signal(signal.SIGTERM)
            code = server.await_exit(30)
            assert code == 0, f"{server.name} was told to drain and ended with {code}"
        server.launch(fail_point)
        server.await_start()
        if server.role == "router":
            self.await_ready()
        else:
            self.await_healthy(server)

    def held_blocks(self):
        """{worker: {state: blocks}} of what is neither free nor cached."""
        held = {server.name: {state: n for state, n in server.blocks().items()
                              if n and state not in PRESENT_STATES} for server in self.workers}
        return {name: states for name, states in held.items() if states}

    def unhealthy(self):
        """The names of the workers that the router does not use."""
        healthy = {w["address"] for w in self.get("/status")["workers"] if w["healthy"]}
        return [server.name for server in self.workers if server.address not in healthy]

    def await_quiet(self, seconds=20):
        """Until the router uses every worker and every block is free or cached; {worker: what is
        held, or that it is not used} if that does not come."""
        deadline = time.monotonic() + seconds
        while True:
            loud = {**{name: {"unhealthy": 1} for name in self.unhealthy()}, **self.held_blocks()}
            if not loud or time.monotonic() > deadline:
                return loud
            time.sleep(0.1)

    def audit(self):
        """(exit code, output) of `baton audit`."""
        done = subprocess.run([self.bin / "baton", "audit", "--dir", self.dir], text=True,
                              capture_output=True, timeout=LIMIT_S)
        return done.returncode, done.stdout + done.stderr

    def fired(self):
        """The lines that fail points have written."""
        return self.fail_log.read_text().splitlines() if self.fail_log.exists() else []

    def save_state(self):
        with self.lock:
            servers = [{"name": s.name, "role": s.role, "process": identity(s.pid),
                        "address": s.address, "data_addresses": s.ready.get("data_addresses", []),
                        "http_url": s.ready.get("http_url", ""),
                        "metrics_url": s.ready.get("metrics_url", ""),
                        "incarnation": s.ready.get("incarnation"), "exited": ""}
                       for s in [self.router, *self.workers]
                       if s.ready and s.process.poll() is None]
            state = {"version": 1, "supervisor": identity(os.getpid()), "ready": True,
                     "model": str(MODEL), "servers": servers}
            fresh = self.dir / "state.json.new"
            fresh.write_text(json.dumps(state))
            fresh.rename(self.dir / "state.json")
