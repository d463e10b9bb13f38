#!/usr/bin/env python3
"""A random model through router, prefill worker and decode worker on one GPU: TTFT, time between
tokens and decode steps beside what reading weights and K/V alone would take there, output.

Usage: serving.py PACK --model 1B|8B [--out FILE]    FILE gets a line of JSON a row
       serving.py PACK --quick [--out FILE]          a tiny model, short answers: that it works
Exits 77 where this machine has no room for the model. Standard library only.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "cluster"), str(HERE.parent / "bench")]
from api_client import metric_sum  # noqa: E402
from report import print_report, row  # noqa: E402
from running_cluster import RunningCluster  # noqa: E402
from streams import Load, run_load  # noqa: E402

GIB = 1 << 30
SKIPPED = 77
# Bytes of a random model, and what two workers have besides it: K/V, graphs, workspace.
SIZES = {"1B": 3 * GIB, "8B": 17 * GIB, "quick": 0}
BESIDES = 8 * GIB


def loads_of(name, vocab):
    if name == "quick":
        return [Load(1, 1, 12, 4, vocab), Load(2, 1, 12, 4, vocab)]
    return [Load(1, 2, 512, 64, vocab), Load(8, 1, 512, 128, vocab), Load(32, 1, 512, 128, vocab)]


def options_of(name):
    if name == "quick":
        return {"num_blocks": 64, "max_model_len": 64, "threads": 1, "gpu_graphs": "off"}
    return {"max_model_len": 2048}


def skip(why):
    print(why)
    sys.exit(SKIPPED)


def check_room(pack, name, folder):
    """Two workers on GPU 0, each with the whole model; its file on disk."""
    if not SIZES[name]:
        return
    told = subprocess.run([pack / "bin/baton-prefill", "--list-gpus"], capture_output=True,
                          text=True, timeout=60, check=True).stdout
    gpu = next(g for g in json.loads(told.splitlines()[-1])["gpus"] if g["index"] == 0)
    needed = 2 * SIZES[name] + BESIDES
    if gpu["memory_free"] < needed:
        skip(f"{name}: two workers need {needed / GIB:.0f} GiB of GPU memory, "
             f"{gpu['memory_free'] / GIB:.0f} are free")
    if (free := shutil.disk_usage(folder).free) < SIZES[name] + GIB:
        skip(f"{name}: needs {SIZES[name] / GIB + 1:.0f} GiB in {folder}, {free / GIB:.0f} are free; "
             "TMPDIR names another folder")


def copy_bandwidth(pack, folder, quick):
    """Bytes a second that CUDA's copies read and write, now."""
    out = folder / "roofs.jsonl"
    subprocess.run([pack / "tests/gpu_tests", "bench", "--groups", "none", "--out", out,
                    *(["--quick"] if quick else [])], check=True, timeout=120,
                   stdout=subprocess.DEVNULL)
    return 1e9 * json.loads(out.read_text().splitlines()[0])["value"]


def bytes_of_step(config, batch, context):
    """What a decode step of so many sequences reads: every matrix but the embedding, K and V."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    weights = layers * (2 * hidden * hidden + 2 * kv * hidden +
                        3 * hidden * config["intermediate_size"]) + config["vocab_size"] * hidden
    return 2 * (weights + layers * 2 * kv * batch * context)


class DecodeSteps:
    """Seconds of decode steps since this was made, by the decode worker's own clock."""

    def __init__(self, cluster):
        state = json.loads((cluster.dir / "state.json").read_text())
        self.url = next(s["metrics_url"] for s in state["servers"] if s["role"] == "decode")
        self.before = self.read()

    def read(self):
        return [metric_sum(self.url, f"baton_{name}_{part}", **labels)
                for name, labels in (("step_seconds", {"phase": "decode"}), ("step_host_seconds", {}))
                for part in ("sum", "count")]

    def means(self):
        """(of a step, of what the host does in one); 0 if there was none."""
        step, steps, host, hosts = (a - b for a, b in zip(self.read(), self.before))
        return step / max(steps, 1), host / max(hosts, 1)


def load_rows(name, cluster, load, config, bandwidth):
    steps = DecodeSteps(cluster)
    figures = run_load(cluster, load, f"bench {load.name}").figures(load)
    context = load.prompt_tokens + load.answer_tokens / 2
    roof = 1e3 * bytes_of_step(config, load.streams, context) / bandwidth
    beside = {"inter-token p50": (roof, "its bytes at copy bandwidth")}
    rows = [row(f"{name} {load.name} {what}", value, unit, *beside.get(what, ()))
            for what, (value, unit) in figures.items()]
    step, host = steps.means()
    return [*rows, row(f"{name} {load.name} decode step", 1e3 * step, "ms",
                       roof, "its bytes at copy bandwidth"),
            row(f"{name} {load.name} host time of a step", 1e3 * host, "ms")]


def measure(pack, name, folder, out):
    """The rows, each load's in `out` as soon as they are there."""
    check_room(pack, name, folder)
    bandwidth = copy_bandwidth(pack, folder, name == "quick")
    subprocess.run([pack / "tests/gpu_tests", "bench", "--make-model", name, "--models", folder],
                   check=True)
    config = json.loads((folder / name / "config.json").read_text())
    cluster = RunningCluster(pack / "bin/baton", f"serving-{name}", model=folder / name,
                             device="cuda", **options_of(name))
    rows = []
    with contextlib.ExitStack() as stack:
        stack.push(cluster.__exit__)  # Also of one that does not come up in time.
        cluster.__enter__()
        loads = loads_of(name, config["vocab_size"])
        run_load(cluster, Load(1, 1, 12, 4, config["vocab_size"]), "warm-up")
        for load in loads:
            found = load_rows(name, cluster, load, config, bandwidth)
            out.writelines(json.dumps(entry) + "\n" for entry in found)
            out.flush()
            rows += found
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pack", type=pathlib.Path)
    parser.add_argument("--model", choices=("1B", "8B"), default="1B")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, default=os.devnull)
    arguments = parser.parse_args()
    name = "quick" if arguments.quick else arguments.model
    # A part that is stopped leaves no cluster on the GPU.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="baton-serving-") as folder, \
            open(arguments.out, "a", encoding="utf-8") as out:
        rows = measure(arguments.pack.resolve(), name, pathlib.Path(folder), out)
    print_report("serving", "1 router, 1 prefill, 1 decode worker on one GPU", rows, False)
    print(f"{len(rows)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
