"""Our kernels as gpu_model.py sees them: of each its threads, shared memory and a turn of its loop."""
import dataclasses
import re

import gpu_code
from gpu_machine import (KIB, blocks_per_sm, cycles_of_turn, least_and_most, reach_of_bytes)

KEYS = 64  # Of a step of attention.
TILE_K = 64  # Of a stage of products.
TILE = r"TileShape<" + ", ".join([r"(\d+)"] * 5) + ">"
BF16, OUT = r"[\w:]*\bBf16", r"([\w:]*\bBf16|float)"
DIMS = (64, 128, 256)


@dataclasses.dataclass
class Kernel:
    """A block of it; a turn is one of the loop of the warps that multiply."""
    what: str
    threads: int
    shared: int
    warps: int  # That multiply.
    flops: float  # Of a turn, those that somebody asked for.
    written: int  # Bytes of shared memory, by copies.
    in_flight: int  # Bytes that copies have asked for while others are multiplied.
    read: int = 0  # Bytes of weights or K and V of a turn, if no other tokens read them; 0: they do.
    besides: dict = dataclasses.field(default_factory=dict)  # Cycles of a turn of two blocks.


@dataclasses.dataclass
class Figures:
    """Of a kernel: [(speed, its limit)] if products and all else do not overlap, and if they do."""
    what: str
    registers: int
    shared: int
    blocks: int
    flops: list
    few: list  # Bytes/s of weights or K and V for no more tokens than a tile has; empty: for more.


def attention_shared(dim, warps=4):
    """sizeof(Tiles) of kernels/cuda/attention_tiles.h."""
    return ((16 * warps + 2 * KEYS) * (dim + 8) * 2 +
            (dim // 2 if dim > 128 else 1) * 32 * warps * 4)


def gemm_shared(rows, columns, stages):
    """sizeof(Stages) of kernels/cuda/gemm_tiles.h."""
    return stages * (rows + columns) * TILE_K * 2


def tile_kernel(what, numbers):
    """Products by mma.sync. Rows are weights where few tokens are columns, else columns are."""
    rows, columns, warp_rows, warp_columns, stages = map(int, numbers)
    warps = rows // warp_rows * (columns // warp_columns)
    tile = gemm_shared(rows, columns, 1)
    return Kernel(f"{what} {rows} x {columns} x {stages} stages", 32 * warps,
                  gemm_shared(rows, columns, stages), warps, 2 * rows * columns * TILE_K, tile,
                  (stages - 2) * tile, (columns if rows == 128 else rows) * TILE_K * 2)


def mma_attention(what, dim, warps, decodes):
    """attention.cu; of a decode step one warp has rows."""
    step = 2 * KEYS * dim * 2
    return Kernel(f"{what} D {dim}, {warps} warps", 32 * warps, attention_shared(dim, warps),
                  1 if decodes else warps, 4 * 16 * (1 if decodes else warps) * KEYS * dim, step,
                  KEYS * dim * 2, step if decodes else 0)


def prefill_sm90(dim):
    """attention_sm90.cu: Shape of attention_copies_sm90.h. Where heads are larger both warpgroups
    multiply the same rows with K, and each with half of V."""
    rows, stages = (64, 2) if dim > 128 else (128, 3)
    step = 2 * KEYS * dim * 2
    return Kernel(f"prefill D {dim}", 384, rows * dim * 2 + stages * step, 8,
                  4 * rows * KEYS * dim, step, (stages - 1) * step)


def gemm_sm90(what, columns, folds):
    """gemm_sm90.cu: kStages and Subtrees."""
    stages = 4 if columns == 256 else 5 if folds else 7
    tile = gemm_shared(128, columns, 1)
    return Kernel(f"{what} 128 x {columns} x {stages} stages", 384,
                  stages * tile + (64 * 256 * 4 if folds else 0), 8, 2 * 128 * columns * TILE_K, tile,
                  (stages - 1) * tile, columns * TILE_K * 2)


# (Weights, tokens) -> stages: StagesFor of kernels/cuda/small_gemm_sm90.cu.
SMALL_STAGES = {(64, 8): 12, (64, 16): 10, (64, 32): 8, (64, 64): 6, (64, 128): 8, (128, 128): 5}


def small_gemm_sm90(what, rows, tokens):
    stages, tile = SMALL_STAGES[rows, tokens], gemm_shared(rows, tokens, 1)
    shared = -(-(stages * tile + rows * tokens * 4 + stages * 16) // KIB) * KIB
    return Kernel(f"{what}, up to {tokens} rows{', wide' if rows > 64 else ''}", 2 * rows + 32, shared,
                  rows // 16, 2 * rows * tokens * TILE_K, tile, (stages - 1) * rows * TILE_K * 2,
                  rows * TILE_K * 2)


def decode_shared(panels, fp8=False):
    """sizeof(Shared) of kernels/cuda/attention_decode_sm90.cu but for its barriers and items."""
    tiles = (6 if fp8 else 12) * KEYS * 64 * 2
    return tiles + (6 * KEYS * 128 if fp8 else 0) + 16 * (64 * panels + 8) * 2


def decode_sm90(panels, fp8, code):
    """One warp multiplies; K and V of a step are read while the others of the ring arrive. Codes of fp8
    are read by two warps of each block, which make tiles of them: those of both blocks are in the
    two quarters of an SM where no warp multiplies."""
    dim = 64 * panels
    step = 2 * KEYS * dim * 2
    kernel = Kernel(f"decode D {dim}", 32 * (6 if panels == 1 else 4), decode_shared(panels), 1,
                    4 * 16 * KEYS * dim, step, (12 - 2 * panels) * KEYS * 64 * 2, step)
    if not fp8:
        return kernel
    # A warp's part of a tile of codes: four rows of 16 bytes of each lane and panel.
    turn = gpu_code.least_of_turn(code, "LDS.128", 4 * panels)
    return dataclasses.replace(
        kernel, what=f"decode fp8 D {dim}", threads=192, shared=decode_shared(panels, True),
        written=step // 2 + step // 2 + step,  # Codes, which are read again, and tiles.
        in_flight=(6 - 2) * KEYS * dim, read=step // 2,
        besides={"issue slots of conversion": 4 * turn})


def kernels_of_name(name, code, architecture):
    """What a demangled name says; those for every GPU are not what an sm_90a takes."""
    every = "mma.sync " if architecture == "sm_90a" else ""
    if found := re.search(rf"ExpertGemmKernel<.*{TILE}, (?:true|false), {BF16}, {OUT}>", name):
        yield tile_kernel(f"experts to {of(found.group(6))}", found.groups()[:5])
    elif found := re.search(rf"GemmKernel<.*{TILE}, {BF16}, {OUT}>", name):
        yield tile_kernel(every + product(found.group(6)), found.groups()[:5])
    elif found := re.search(rf"SmallGemmSm90Kernel<{BF16}, {OUT}, (\d+), (\d+), (true|false)>", name):
        what = "gated GEMM" if found.group(4) == "true" else product(found.group(1))
        yield small_gemm_sm90(what, int(found.group(2)), int(found.group(3)))
    elif found := re.search(rf"GemmSm90Kernel<{BF16}, {OUT}, (\d+), (true|false)>", name):
        folds = found.group(3) == "true"
        # Without a fold f32 is for logits alone, and with one bf16 for nobody.
        if folds == (found.group(1) == "float"):
            yield gemm_sm90(product(found.group(1)), int(found.group(2)), folds)
    elif found := re.search(rf"AttentionSm90Kernel<(\d+), {BF16}>", name):
        yield prefill_sm90(int(found.group(1)))
    elif found := re.search(rf"DecodeSm90Kernel<(\d), {BF16}, (true|false)>", name):
        yield decode_sm90(int(found.group(1)), found.group(2) == "true", code)
    elif found := re.search(rf"AttentionKernel<(\d+), {BF16}, (\d)>", name):
        dim, warps = map(int, found.groups())
        if dim in DIMS and warps == 4:
            yield mma_attention(every + "prefill", dim, warps, False)
        if dim in DIMS and (warps == 1 or dim < 256):
            yield mma_attention(every + "decode", dim, warps, True)


def of(out):
    return "f32" if out == "float" else "bf16"


def product(out):
    """Products that are summed in segments give f32."""
    return "segments" if out == "float" else "GEMM"


def figures_of_kernel(gpu, kernel, registers, loop):
    blocks = blocks_per_sm(gpu, kernel.threads, registers, kernel.shared)
    cycles = cycles_of_turn(gpu, loop, blocks * kernel.warps, blocks * kernel.written)
    cycles |= {what: blocks / 2 * spent for what, spent in kernel.besides.items()}
    flops = [(blocks * kernel.flops / spent * gpu.cycles, limit)
             for spent, limit in least_and_most(cycles)]
    few = []
    if kernel.read:
        speed, limit = reach_of_bytes(gpu, blocks * kernel.in_flight)
        cycles[limit] = blocks * kernel.read / speed * gpu.cycles
        few = [(blocks * kernel.read / spent * gpu.cycles, by) for spent, by in least_and_most(cycles)]
    return Figures(kernel.what, registers, kernel.shared, blocks, flops, few)


def figures_of(gpu, kernels):
    """`kernels`: demangled name -> (registers, text of its code)."""
    out = []
    for name, (registers, code) in kernels.items():
        if known := list(kernels_of_name(name, code, gpu.architecture)):
            loop = gpu_code.main_loop(code)
            out += [figures_of_kernel(gpu, kernel, registers, loop) for kernel in known]
    return sorted(out, key=lambda figures: [int(x) if x.isdigit() else x
                                            for x in re.split(r"(\d+)", figures.what)])


SOURCES = {"sm_80": ["gemm", "attention", "expert_gemm"],
           "sm_90a": ["gemm", "attention", "expert_gemm", "gemm_sm90", "small_gemm_sm90",
                      "attention_sm90", "attention_decode_sm90"]}


def figures_in(folder, gpu, home):
    """(figures of products and attention, registers of the gather) of a folder of cubins."""
    figures = []
    for source in SOURCES[gpu.architecture]:
        cubin = folder / f"{source}.{gpu.architecture}.cubin"
        found = figures_of(gpu, gpu_code.kernels_of(cubin, home))
        if not found:
            raise ValueError(f"{cubin}: of no kernel is known what it does: their names have changed")
        figures += found
    gather = gpu_code.kernels_of(folder / f"cache_blocks.{gpu.architecture}.cubin", home)
    return figures, next(r for n, (r, _) in gather.items() if "CopyKernel<uint4>" in n)
