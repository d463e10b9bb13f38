#!/usr/bin/env python3
"""What the libraries reach that torch brings: cuBLASLt by torch.matmul, attention by cuDNN and by
FlashAttention, at the sizes of tests/gpu/bench.

Usage: torch_rows.py [--out FILE] [--seconds S]    FILE gets a line of JSON a row
Exits 77 where there is no torch with CUDA.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from report import print_report, row  # noqa: E402

SKIPPED = 77
# As gemm_rows.cc and attention_rows.cc have them.
SHAPES = {"1B qkv": (3072, 2048), "1B o": (2048, 2048), "1B gate_up": (16384, 2048),
          "1B down": (2048, 8192), "8B qkv": (6144, 4096), "8B o": (4096, 4096),
          "8B gate_up": (28672, 4096), "8B down": (4096, 14336)}
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
PREFILL = [(dim, heads, 8, tokens) for dim, heads in ((64, 32), (128, 32), (256, 16))
           for tokens in (1024, 2048, 4096, 8192, 16384)]
DECODE = [(dim, 32, 8, keys, batch) for dim in (64, 128) for keys in (1024, 4096, 16384, 32768)
          for batch in (1, 8, 32, 128)]
COLD_BYTES = 256 << 20  # No call finds its weights or K and V in a cache.


def find_torch():
    """torch with a GPU; else ends with the reason."""
    try:
        import torch
    except ImportError as error:
        print(f"no torch here: {error}")
        sys.exit(SKIPPED)
    if not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no GPU")
        sys.exit(SKIPPED)
    return torch


def seconds_of(torch, call, budget=0.01, repeats=5):
    """Of one of many calls in a graph; the median."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):  # Before a capture, as torch asks for.
        call(0)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call(0)
        torch.cuda.synchronize()
    calls = max(1, min(200, int(budget / (time.perf_counter() - begin))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    graph.replay()
    taken = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(taken) / calls


def copies_for(bytes_each):
    return max(1, COLD_BYTES // bytes_each)


def gemm_cases(torch):
    """(name, operations, bytes, how to make its call)."""
    def make(n, k, m):
        count = copies_for(2 * n * k)
        weights = [torch.randn(n, k, dtype=torch.bfloat16, device="cuda") for _ in range(count)]
        a = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
        return lambda i: torch.matmul(a, weights[i % count].t())
    for name, (n, k) in SHAPES.items():
        for m in ROWS:
            yield (f"torch gemm {name} {n}x{k} M={m}", 2 * m * n * k, 2 * (n * k + m * k + m * n),
                   lambda n=n, k=k, m=m: make(n, k, m))


def attention_cases(torch, backend, label):
    from torch.nn.attention import sdpa_kernel
    attend = torch.nn.functional.scaled_dot_product_attention

    def make(batch, heads, kv_heads, queries, keys, dim):
        of_call = 4 * batch * kv_heads * keys * dim
        count = 1 if queries > 1 else copies_for(of_call)
        draw = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16, device="cuda")
        q = draw(batch, heads, queries, dim)
        kv = [(draw(batch, kv_heads, keys, dim), draw(batch, kv_heads, keys, dim))
              for _ in range(count)]

        def call(i):
            with sdpa_kernel(backend):
                attend(q, *kv[i % count], is_causal=queries > 1, enable_gqa=True)
        return call
    cases = [(1, heads, kv, n, n, dim, "prefill") for dim, heads, kv, n in PREFILL]
    cases += [(batch, heads, kv, 1, keys, dim, "decode") for dim, heads, kv, keys, batch in DECODE]
    for batch, heads, kv, queries, keys, dim, kind in cases:
        seen = keys - (queries - 1) / 2
        yield (f"torch {label} {kind} D={dim} heads {heads}/{kv} batch {batch} context {keys} bf16",
               4 * batch * queries * seen * heads * dim,
               4 * batch * (kv * keys + heads * queries) * dim,
               lambda c=(batch, heads, kv, queries, keys, dim): make(*c))


def cases_of(torch):
    yield from gemm_cases(torch)
    try:
        from torch.nn.attention import SDPBackend
    except ImportError:  # Before torch 2.3.
        print(f"  torch {torch.__version__} lets nobody choose its attention: left out")
        return
    for name, label in (("CUDNN_ATTENTION", "cuDNN attention"), ("FLASH_ATTENTION", "FlashAttention")):
        if hasattr(SDPBackend, name):
            yield from attention_cases(torch, getattr(SDPBackend, name), label)


def measure(torch, seconds, out):
    """Rows to be compared by their seconds; what fails is left out."""
    rows, left_out, begin = [], 0, time.monotonic()
    for name, ops, size, make in cases_of(torch):
        if time.monotonic() - begin > seconds:
            left_out += 1
            continue
        try:
            taken = seconds_of(torch, make())
        except (RuntimeError, TypeError) as error:  # No such kernel for these sizes, no memory.
            print(f"  {name}: left out: {str(error).splitlines()[0][:100]}")
            left_out += 1
            torch.cuda.empty_cache()
            continue
        computes = ops / size > 200  # About where both roofs of an H100 meet.
        rows.append(row(name, ops / taken * 1e-12 if computes else size / taken * 1e-9,
                        "TFLOP/s" if computes else "GB/s", seconds=taken) |
                    {"ops": ops, "bytes": size})
        out.write(json.dumps(rows[-1]) + "\n")
        out.flush()
    return rows, left_out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=os.devnull)
    parser.add_argument("--seconds", type=float, default=1e9)
    arguments = parser.parse_args()
    torch = find_torch()
    with open(arguments.out, "a", encoding="utf-8") as out:
        rows, left_out = measure(torch, arguments.seconds, out)
    print_report("torch", f"torch {torch.__version__}, {torch.cuda.get_device_name()}", rows, False)
    print(f"{len(rows)} rows, {left_out} left out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
