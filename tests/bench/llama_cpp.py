"""llama.cpp as a peer: installed on request into the benchmarks' cache folder, built for this
machine from the source package of llama-cpp-python; its benchmarks and its server on our weights.
"""
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

from programs import ROOT, cache_folder, peak_bytes

sys.path.insert(0, str(ROOT / "tests" / "cluster"))
from api_client import ApiClient  # noqa: E402
from process_cluster import await_true  # noqa: E402

VERSION = "0.3.36"  # Of llama-cpp-python.
GGUF_VERSION = "0.19.0"
PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-server")


def folder():
    return cache_folder() / f"llama_cpp_python-{VERSION}"


def python():
    """Of an environment with the package gguf."""
    return cache_folder() / "venv" / "bin" / "python"


def missing():
    """Why it cannot run, or None."""
    for path in (python(), *(folder() / "build" / "bin" / name for name in PROGRAMS)):
        if not path.exists():
            return f"{path} is missing: llama.cpp comes with tests/bench/peers.py --install"
    return None


def install():
    """Some 10 minutes and 1 GB. Goes on where it stopped."""
    def run(*command):
        print("+", *command, file=sys.stderr)
        subprocess.run(list(map(str, command)), check=True, stdout=sys.stderr)
    cache_folder().mkdir(parents=True, exist_ok=True)
    run(sys.executable, "-m", "venv", cache_folder() / "venv")
    run(python(), "-m", "pip", "install", "-q", f"gguf=={GGUF_VERSION}")
    if not folder().exists():
        with tempfile.TemporaryDirectory(dir=cache_folder()) as download:
            run(python(), "-m", "pip", "download", "-q", "--no-deps", "--no-binary",
                "llama-cpp-python", "-d", download, f"llama-cpp-python=={VERSION}")
            run("tar", "-xzf", next(pathlib.Path(download).glob("*.tar.gz")), "-C", download)
            (pathlib.Path(download) / folder().name).rename(folder())
    run("cmake", "-S", folder() / "vendor" / "llama.cpp", "-B", folder() / "build",
        "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_UI=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_OPENSSL=OFF")
    run("cmake", "--build", folder() / "build", "-j", os.cpu_count(), "--target", *PROGRAMS)


def make_model(model):
    """The GGUF file beside a model folder, made unless it is there."""
    path = model.with_suffix(".gguf")
    if not path.exists():
        subprocess.run([python(), pathlib.Path(__file__).with_name("gguf_model.py"), model, path],
                       check=True, stdout=sys.stderr)
    return path


def output_of(name, *arguments):
    command = [folder() / "build" / "bin" / name, *map(str, arguments)]
    done = subprocess.run(command, text=True, check=False, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def prefill_rate(path, threads, tokens):
    """Tokens per second of a prompt."""
    return json.loads(output_of("llama-bench", "-m", path, "-t", threads, "-p", tokens, "-n", 0,
                                "-r", 1, "-o", "json"))[0]["avg_ts"]


def decode_rate(path, threads, batch, context):
    """Tokens per second of all sequences together, `context` tokens each in the middle."""
    steps = 16
    prompt = context - steps // 2
    lines = output_of("llama-batched-bench", "-m", path, "-t", threads, "-tb", threads,
                      "-c", batch * (prompt + steps), "-b", 2048, "-ub", 512, "-npp", prompt,
                      "-ntg", steps, "-npl", batch, "--output-format", "jsonl").splitlines()
    return next(json.loads(line)["speed_tg"] for line in lines if line.startswith("{"))


class Server(ApiClient):
    """llama-server with room for 8 streams of 1,024 tokens. Use as a context manager."""

    def __init__(self, path, threads):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url, self.model = f"http://127.0.0.1:{port}", "peer"
        self.command = [folder() / "build" / "bin" / "llama-server", "-m", path, "-t", threads,
                        "-tb", threads, "-np", 8, "-c", 8 * 1024, "-b", 2048, "-ub", 512,
                        "--host", "127.0.0.1", "--port", port, "--cache-ram", 0]
        self.start_seconds = 0

    def __enter__(self):
        start = time.monotonic()
        self.process = subprocess.Popen(list(map(str, self.command)), stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def is_ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"llama-server ended with {self.process.returncode}")
            try:
                return self.request("GET", "/health", timeout=5)[0] == 200
            except OSError:
                return False
        await_true(is_ready, 120, "llama-server is ready")
        self.start_seconds = time.monotonic() - start
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(10)

    def peak_bytes(self):
        return peak_bytes(self.process.pid)
