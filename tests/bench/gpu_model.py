#!/usr/bin/env python3
"""What the kernels could reach on a GPU, and what stops them there: computed, never measured.

Usage: gpu_model.py [--cubins DIR [--json | --measured FILE...]]
Without --cubins: FlashAttention-3's published figures beside what the same constants give for its
tiles. With it, our kernels too, from what the compiler made of them, and each speed that is a goal on
a device: DIR is what tests/kernels/cuda/compile_gate.py --keep DIR leaves. --measured: beside them
what an H100 said, of files of tests/bench/results or of `gpu_tests bench --out`. No constant is
fitted; gpu_machine.py has them with their sources, gpu_code.py counts, gpu_kernels.py knows the
kernels, gpu_goals.py the goals.
"""
import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys

from gpu_goals import GATHER, entries_of, goal_lines, measured_lines, measured_rows, reach_of_gather
from gpu_kernels import figures_in
from gpu_machine import GPUS, KIB, MUFU_LANES, SHARED_BYTES

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLKIT = ROOT / "kernels/cuda/toolkit.sh"


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


def kernel_line(gpu, kernel):
    reaches = [f"{flops / 1e12:.0f} TFLOP/s" for flops, _ in kernel.flops]
    line = (f"  {gpu.name} {kernel.what:35} {kernel.registers:3} registers {kernel.shared / KIB:4.0f} KiB"
            f" {kernel.blocks} blocks  {' to '.join(reaches)} = {100 * kernel.flops[1][0] / gpu.peak:.0f}%"
            f" ({kernel.flops[1][1]})")
    if kernel.few:
        line += (f"; few rows {' to '.join(f'{x / 1e12:.2f}' for x, _ in kernel.few)} TB/s"
                 f" ({kernel.few[1][1]})")
    return line


def gather_line(gpu, registers):
    blocks, speed, limit = reach_of_gather(gpu, registers)
    return (f"  {gpu.name} {GATHER:35} {registers:3} registers    0 KiB"
            f" {blocks} blocks  {speed / 1e12:.2f} TB/s ({limit}, read and written)")


def published():
    """Of FlashAttention-3 with a mask, as our prompts have one."""
    return {case.dim: case.published for case in FA3 if case.causal}


def tables(found, measured):
    """Of [(gpu, figures, registers of the gather)]."""
    yield ("Our kernels: as long as products and all else do not overlap, to: as soon as all of it does. Of each"
           "\nloop the shortest way round: no masks, caps, or bytes that are not aligned. H200 is an H100 with"
           "\nfaster memory. What an H100 loses by its clock, which products take down, is not computed.")
    for gpu, figures, gather in found:
        yield from (kernel_line(gpu, kernel) for kernel in figures)
        yield gather_line(gpu, gather)
    yield "Goals on a device, and what each could be at most:"
    for gpu, figures, gather in found:
        text = measured if gpu.name == "H100" else ""
        yield from goal_lines(gpu, entries_of(gpu, figures, gather), published(), text)
    if measured:
        yield "Measured on an H100, of what was computed of it (the latter is 100%):"
        gpu, figures, gather = next(some for some in found if some[0].name == "H100")
        yield from measured_lines(entries_of(gpu, figures, gather), measured_rows(measured))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cubins", type=pathlib.Path)
    parser.add_argument("--json", action="store_true", help="of --cubins, for tests/gpu/bench")
    parser.add_argument("--measured", type=pathlib.Path, nargs="+", default=[],
                        help="what an H100 said")
    arguments = parser.parse_args()
    folder = arguments.cubins
    if (arguments.json or arguments.measured) and folder is None:
        parser.error("--json and --measured need --cubins: without kernels there is nothing to tell")
    if not arguments.json:
        print("Computed from counts and published constants" +
              (", beside what was MEASURED." if arguments.measured else ", NOT MEASURED."))
        print("\n".join(fa3_lines()))
    if folder is None:
        return 0
    home = pathlib.Path(subprocess.run([TOOLKIT], check=True, capture_output=True,
                                       text=True).stdout.strip())
    found = [(gpu, *figures_in(folder, gpu, home)) for gpu in GPUS]
    if arguments.json:
        print(json.dumps({gpu.name: entries_of(gpu, *rest) for gpu, *rest in found}, indent=1))
        return 0
    print("\n".join(tables(found, "\n".join(file.read_text() for file in arguments.measured))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
