#!/usr/bin/env python3
"""What the kernels could reach on a GPU, and what stops them there: computed, never measured.

Usage: gpu_model.py [--cubins DIR [--json]]
Without --cubins: FlashAttention-3's published figures beside what the same constants give for its
tiles. With it, our kernels too, from what the compiler made of them: DIR is what
tests/kernels/cuda/compile_gate.py --keep DIR leaves. No constant is fitted; each has its source.
"""
import argparse
import dataclasses
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLKIT = ROOT / "kernels/cuda/toolkit.sh"
KIB = 1024


@dataclasses.dataclass(frozen=True)
class Gpu:
    name: str
    architecture: str  # Whose machine code it runs.
    sms: int
    ghz: float  # That its tensor peak is stated for.
    flops: int  # bf16, dense, of an SM in a cycle.
    mma_share: float  # Of these, what mma.sync has.
    hbm: float  # bytes/s
    latency: float  # cycles of a load from HBM
    shared: int  # bytes an SM has for blocks
    f32_lanes: int

    @property
    def peak(self):
        return self.sms * self.ghz * 1e9 * self.flops


# NVIDIA A100 and H100 whitepapers (2020, 2022), H200 data sheet (2023): SMs, clocks, lanes, shared
# memory, HBM: A100 80GB SXM 312 TFLOP/s, 2,039 GB/s; H100 SXM5 989.4 TFLOP/s, 3,350 GB/s; H200 has
# its chip with 4,800 GB/s. Latencies, and what of H100's rate mma.sync has: Luo et al., arXiv
# 2402.13499 (2024), tables of memory latency and of mma instructions.
GPUS = [
    Gpu("A100", "sm_80", 108, 1.410, 2048, 1.0, 2.039e12, 466, 164 * KIB, 64),
    Gpu("H100", "sm_90a", 132, 1.830, 4096, 0.629, 3.35e12, 479, 228 * KIB, 128),
    Gpu("H200", "sm_90a", 132, 1.830, 4096, 0.629, 4.8e12, 479, 228 * KIB, 128),
]
# Of an SM in a cycle, on all three (CUDA C++ Programming Guide, arithmetic throughput and
# compute capabilities).
SHARED_BYTES, MUFU_LANES, PARTITIONS, REGISTERS, THREADS = 128, 16, 4, 65536, 2048
RESERVED_SHARED = KIB  # Of each block.


def blocks_per_sm(gpu, threads, registers, shared):
    """How many fit; registers are given to warps in units of 256."""
    per_warp = -(-registers * 32 // 256) * 256
    return min(THREADS // threads, REGISTERS // (per_warp * (threads // 32)),
               gpu.shared // (shared + RESERVED_SHARED), 32)


@dataclasses.dataclass
class Loop:
    """Instructions of a warp in the loop that has the most products."""
    all: int = 0
    products: int = 0
    ldsm: int = 0
    copies: int = 0
    mufu: int = 0


def loop_of(code):
    lines = [(int(at, 16), text) for at, text in
             re.findall(r"/\*([0-9a-f]{4,})\*/\s+([^;]+);", code)]
    best, size = Loop(), 0
    for at, text in lines:
        branch = re.search(r"\bBRA\b.*?\b0x([0-9a-f]+)", text)
        if not branch or int(branch.group(1), 16) >= at:
            continue
        begin = int(branch.group(1), 16)
        body = [t for a, t in lines if begin <= a <= at]
        count = lambda word: sum(1 for t in body if re.search(rf"\b{word}", t))  # noqa: B023
        loop = Loop(len(body), count("HMMA"), count("LDSM"), count("LDGSTS"), count("MUFU"))
        if (loop.products, -loop.all) > (best.products, -size):
            best, size = loop, loop.all
    return best


def bare(loop):
    """Without what a compiler might do without: addresses, masks, ways that few iterations take."""
    return dataclasses.replace(loop, all=loop.products + loop.ldsm + loop.copies + loop.mufu)


def limits_of_loop(gpu, loop):
    """Cycles of a partition for a turn of the loop of one warp, by what they are spent on."""
    product = 2 * 16 * 8 * 16 / (gpu.flops / PARTITIONS * gpu.mma_share)
    return {"tensor cores (mma.sync)": loop.products * product,
            "shared memory": 512 * (loop.ldsm + loop.copies) * PARTITIONS / SHARED_BYTES,
            "issue slots": float(loop.all),
            "exponentials": loop.mufu * 32 * PARTITIONS / MUFU_LANES}


def reach_of_loop(gpu, loop):
    """(FLOP/s at most, its limit)."""
    limits = limits_of_loop(gpu, loop)
    limit = max(limits, key=limits.get)
    flops = 2 * 16 * 8 * 16 * loop.products / limits[limit]
    return flops * PARTITIONS * gpu.sms * gpu.ghz * 1e9, limit


def reach_of_bytes(gpu, in_flight, directions=1):
    """(bytes/s at most, its limit) with so many bytes under way on each SM (Little's law)."""
    by_latency = in_flight * gpu.sms * gpu.ghz * 1e9 / gpu.latency
    hbm = gpu.hbm / directions
    return (hbm, "HBM") if hbm <= by_latency else (by_latency, "occupancy")


def reach_of_few_rows(gpu, loop, in_flight, warps):
    """(bytes/s of weights or K and V at most, its limit): 16 rows are a warp's products, each byte
    takes 16 FLOP, and `warps` of an SM multiply."""
    by_memory, memory = reach_of_bytes(gpu, in_flight)
    flops, limit = reach_of_loop(gpu, loop)
    by_products = flops * min(1, warps / PARTITIONS) / 16
    return (by_memory, memory) if by_memory <= by_products else (by_products, limit)


# FlashAttention-3 (arXiv 2407.08608): forward, f16, H100 SXM5, 16k tokens, hidden size 2,048,
# figure 5, all but D 256 without a mask; tiles of its source of that time
# (hopper/flash_fwd_launch_template.h).
@dataclasses.dataclass(frozen=True)
class Fa3:
    dim: int
    causal: bool
    rows: int
    keys: int
    published: float


FA3 = [Fa3(64, False, 192, 128, 497), Fa3(64, True, 192, 128, 473), Fa3(128, False, 128, 176, 648),
       Fa3(128, True, 128, 128, 616), Fa3(256, True, 128, 80, 642)]


def fa3_cycles(gpu, case):
    """Of an SM for one tile of rows by one of keys, by what they are spent on. A warpgroup has 64
    rows; queries, K and V come from shared memory, probabilities from registers."""
    scores, groups = case.rows * case.keys, case.rows // 64
    read = groups * 2 * case.dim * (64 + case.keys + case.keys)
    return {"tensor cores": 4 * scores * case.dim / gpu.flops,
            "shared memory": (read + 4 * case.keys * case.dim) / SHARED_BYTES,
            "exponentials": scores / MUFU_LANES,
            # Scale with subtraction, maximum, sum; half of a conversion.
            "f32": 3.5 * scores / gpu.f32_lanes}


def fa3_share_needed(case, tokens=16384):
    """What of the products that are done a causal mask asks for; tiles at its edge are whole."""
    if not case.causal:
        return 1.0
    done = sum(-(-(row + case.rows) // case.keys) * case.keys * case.rows
               for row in range(0, tokens, case.rows))
    return tokens * tokens / 2 / done


def fa3_tflops(gpu, case):
    """(everything overlaps, exponentials beside nothing else, nothing overlaps): TFLOP/s."""
    cycles = fa3_cycles(gpu, case)
    useful = 4 * case.rows * case.keys * case.dim * fa3_share_needed(case)
    series = cycles["tensor cores"] + cycles["exponentials"]
    return [useful / c * gpu.sms * gpu.ghz / 1e3 for c in
            (max(cycles.values()), max(series, cycles["shared memory"]), series + cycles["f32"])]


def fa3_lines():
    gpu = next(g for g in GPUS if g.name == "H100")
    yield (f"{'FlashAttention-3 on H100, TFLOP/s':36} published  all overlap  exp. apart   none"
           "   exp. apart misses by")
    for case in FA3:
        overlap, middle, none = fa3_tflops(gpu, case)
        name = f"D {case.dim}{', causal' if case.causal else ''}, {case.rows} x {case.keys}"
        yield (f"  {name:34} {case.published:9.0f} {overlap:12.0f} {middle:11.0f} {none:6.0f}"
               f"   {100 * (middle / case.published - 1):+.0f}%")
    yield ("  The three columns are three assumptions of what overlaps, of which the middle one was"
           "\n  chosen after seeing the figures: that it comes near is no proof of it.")


def attention_shared(dim, warps=4):
    """sizeof(Tiles) of kernels/cuda/attention_tiles.h."""
    return ((16 * warps + 2 * 64) * (dim + 8) * 2 +
            (dim // 2 if dim > 128 else 1) * 32 * warps * 4)


def gemm_shared(rows, columns, stages):
    """sizeof(Stages) of kernels/cuda/gemm_tiles.h."""
    return stages * (rows + columns) * 64 * 2


# Tokens -> stages: StagesFor of kernels/cuda/small_gemm_sm90.cu.
SMALL_STAGES = {8: 12, 16: 10, 32: 8, 64: 6}


def small_gemm_figures(gpu, tokens, registers):
    """Of products of few rows on sm_90a: each byte of weights is multiplied with all tokens while
    others are under way, so that memory alone limits them."""
    stages = SMALL_STAGES[tokens]
    shared = -(-(stages * (64 + tokens) * 128 + 64 * tokens * 4 + stages * 16) // KIB) * KIB
    blocks = blocks_per_sm(gpu, 128, registers, shared)
    speed, limit = reach_of_bytes(gpu, blocks * (stages - 1) * 64 * 128)
    return Figures(f"GEMM, up to {tokens} rows", registers, shared, blocks, tokens,
                   [(speed * tokens, limit)] * 2, [(speed, limit)] * 2)


def decode_shared(panels):
    """sizeof(Shared) of kernels/cuda/attention_decode_sm90.cu but for its barriers and items."""
    return 12 * 64 * 64 * 2 + 16 * (64 * panels + 8) * 2


@dataclasses.dataclass
class Figures:
    """Of a kernel: [(speed, its limit)] by every instruction of its loop and by the bare ones."""
    what: str
    registers: int
    shared: int
    blocks: int
    columns: int  # Of a tile of products, the tokens; also where there are fewer.
    flops: list
    few: list  # Bytes/s where `columns` rows are its products; empty: it is not for so few.


def figures_of(gpu, kernels):
    """`kernels`: demangled name -> (registers, Loop)."""
    for name, (registers, loop) in sorted(kernels.items()):
        gemm = re.search(r"GemmKernel<.*TileShape<" + ", ".join([r"(\d+)"] * 5) +
                         r">, [\w:]*Bf16, [\w:]*Bf16>", name)
        small = re.search(r"SmallGemmSm90Kernel<[\w:]*Bf16, [\w:]*Bf16, (\d+), false>", name)
        attention = re.search(r"AttentionKernel<(64|128|256), .*Bf16, (\d)>", name)
        decode = re.search(r"DecodeSm90Kernel<(\d), [\w:]*Bf16>", name)
        if small:
            yield small_gemm_figures(gpu, int(small.group(1)), registers)
            continue
        if gemm:
            rows, columns, warp_rows, warp_columns, stages = map(int, gemm.groups())
            threads = 32 * (rows // warp_rows) * (columns // warp_columns)
            shared = gemm_shared(rows, columns, stages)
            what = f"GEMM {rows} x {columns} x {stages} stages"
            in_flight = (stages - 2) * (rows + columns) * 64 * 2
        elif attention:
            dim, warps = map(int, attention.groups())
            threads, shared = 32 * warps, attention_shared(dim, warps)
            what, in_flight, columns = f"attention D {dim}, {warps} warps", 64 * dim * 2, 16
        elif decode:
            panels = int(decode.group(1))
            threads, shared = 32 * (6 if panels == 1 else 4), decode_shared(panels)
            # K and V of a step are read while the others of the ring arrive.
            what, in_flight, columns = f"decode D {64 * panels}", (12 - 2 * panels) * 64 * 64 * 2, 16
        else:
            continue
        blocks = blocks_per_sm(gpu, threads, registers, shared)
        # Fewer warps than partitions leave some idle.
        busy = min(1, blocks * (1 if decode else threads // 32) / PARTITIONS)
        loops = (loop, bare(loop))
        flops = [(busy * speed, limit) for speed, limit in (reach_of_loop(gpu, l) for l in loops)]
        few = []
        if columns == 16:
            # Of attention one has the rows.
            warps = blocks * (1 if attention or decode else threads // 32)
            few = [reach_of_few_rows(gpu, l, blocks * in_flight, warps) for l in loops]
        yield Figures(what, registers, shared, blocks, columns, flops, few)


def kernel_lines(gpu, kernels):
    for kernel in figures_of(gpu, kernels):
        reaches = [f"{flops / 1e12:.0f} TFLOP/s = {100 * flops / gpu.peak:.0f}% ({limit})"
                   for flops, limit in kernel.flops]
        line = (f"  {gpu.name} {kernel.what:24} {kernel.registers:3} registers"
                f" {kernel.shared / KIB:4.0f} KiB {kernel.blocks} blocks  {' to '.join(reaches)}")
        if kernel.few:
            line += f"; {kernel.columns} rows: " + " to ".join(f"{x / 1e12:.2f} TB/s ({by})"
                                                for x, by in kernel.few)
        yield line


GATHER = "gather, copies of blocks"


def reach_of_gather(gpu, registers):
    """(blocks, bytes/s of what is copied, its limit): kernels/cuda/cache_blocks.cu: 256 threads with
    four vectors of 16 bytes each."""
    blocks = blocks_per_sm(gpu, 256, registers, 0)
    return (blocks, *reach_of_bytes(gpu, blocks * 256 * 4 * 16, directions=2))


def gather_line(gpu, registers):
    blocks, speed, limit = reach_of_gather(gpu, registers)
    return (f"  {gpu.name} {GATHER:24} {registers:3} registers    0 KiB"
            f" {blocks} blocks  {speed / 1e12:.2f} TB/s ({limit}, read and written)")


def for_bench(gpu, kernels, gather_registers):
    """What tests/gpu/bench prints beside its rows: each kernel's speeds, the lower one first; bytes are
    those read and written."""
    entries = []
    for kernel in figures_of(gpu, kernels):
        flops = sorted(x for x, _ in kernel.flops)
        entries.append({"kernel": kernel.what, "flops": flops,
                        "bytes": sorted(x for x, _ in kernel.few) or
                                 [min(gpu.hbm, x / kernel.columns) for x in flops]})
    _, speed, _ = reach_of_gather(gpu, gather_registers)
    return [*entries, {"kernel": GATHER, "bytes": [2 * speed, 2 * speed]}]


def kernels_of(cubin, home):
    run = lambda *words: subprocess.run(words, check=True, capture_output=True, text=True).stdout
    used = run(home / "bin/cuobjdump", "-res-usage", cubin)
    registers = dict(re.findall(r"Function (\w+):\s*\n.*?\bREG:(\d+)", used))
    code = {}
    for part in re.split(r"\n\s*Function : ", run(home / "bin/cuobjdump", "-sass", cubin))[1:]:
        mangled, _, text = part.partition("\n")
        code[mangled.strip()] = text
    names = run("c++filt", *code).splitlines()
    return {name: (int(registers[mangled]), loop_of(code[mangled]))
            for mangled, name in zip(code, names)}


def kernels_in(folder, gpu, home):
    """(kernels of products and attention, registers of the gather) in a folder of cubins."""
    kernels = {}
    sources = ["gemm", "attention"]
    if gpu.architecture == "sm_90a":
        sources += ["small_gemm_sm90", "attention_decode_sm90"]
    for source in sources:
        kernels |= kernels_of(folder / f"{source}.{gpu.architecture}.cubin", home)
    gather = kernels_of(folder / f"cache_blocks.{gpu.architecture}.cubin", home)
    return kernels, next(r for n, (r, _) in gather.items() if "uint4" in n)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cubins", type=pathlib.Path)
    parser.add_argument("--json", action="store_true", help="of --cubins, for tests/gpu/bench")
    arguments = parser.parse_args()
    folder = arguments.cubins
    if arguments.json and folder is None:
        parser.error("--json needs --cubins: without kernels there is nothing to tell")
    if not arguments.json:
        print("Computed from counts and published constants, NOT MEASURED: tests/bench/results has"
              " what an H100 said.")
        print("\n".join(fa3_lines()))
    if folder is None:
        return 0
    home = pathlib.Path(subprocess.run([TOOLKIT], check=True, capture_output=True,
                                       text=True).stdout.strip())
    found = [(gpu, *kernels_in(folder, gpu, home)) for gpu in GPUS]
    if arguments.json:
        print(json.dumps({gpu.name: for_bench(gpu, *rest) for gpu, *rest in found}, indent=1))
        return 0
    print("Our kernels: from every instruction of the loop, also of ways that few iterations take"
          "\n(bytes that are not aligned, fp8, masks), to products, tiles, copies, exponentials:")
    for gpu, kernels, gather in found:
        print("\n".join(kernel_lines(gpu, kernels)))
        print(gather_line(gpu, gather))
    return 0


if __name__ == "__main__":
    sys.exit(main())
