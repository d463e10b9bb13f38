"""What gpu_model.py says of each speed that is a goal on a device, with its limit: and of rows that were
measured, what stands beside them."""
import dataclasses
import json
import re

from gpu_machine import blocks_per_sm, reach_of_bytes

GATHER, PINNED = "gather, copies of blocks", "pinned, copies of blocks"
ROUNDING = 1.005  # Of figures that were written with four digits.
# hidden, layers, KV heads' width, intermediate, vocabulary: of Llama 8B, as serving.py has it.
LLAMA_8B = (4096, 32, 1024, 14336, 128256)


def bytes_of_step(batch, context):
    """What a decode step of Llama 8B reads at least: every matrix but the embedding, K and V."""
    hidden, layers, kv, intermediate, vocabulary = LLAMA_8B
    weights = layers * (2 * hidden * hidden + 2 * kv * hidden + 3 * intermediate * hidden)
    return 2 * (weights + vocabulary * hidden) + batch * context * layers * 2 * kv * 2


def bytes_of_metadata(batch, context, most_tokens=512 + 1, most_rows=64, block=16):
    """What a step's upload has at least, between the step before and its first kernel: the arrays of
    common/model/step_metadata.cc in their full size, of a worker without options, and the tables."""
    rows = (most_rows + 1) + 2 * most_rows + (2 * most_rows + 1) + 2 * 2 * most_rows
    return 24 * most_tokens + 4 * rows + 4 * batch * -(-(context + 1) // block)


# Of 32 streams of serving.py: prompts of 512 tokens, answers of 128, half way.
STEP = (32, 512 + 64)


def reach_of_gather(gpu, registers):
    """(blocks, bytes/s of what is copied, its limit): kernels/cuda/cache_blocks.cu: 256 threads with
    four vectors of 16 bytes each."""
    blocks = blocks_per_sm(gpu, 256, registers, 0)
    return (blocks, *reach_of_bytes(gpu, blocks * 256 * 4 * 16, directions=2))


def entries_of(gpu, figures, gather_registers):
    """What tests/gpu/bench prints beside its rows: each kernel's speeds, the lower one first; bytes are
    those read and written."""
    entries = []
    for kernel in figures:
        few = kernel.few or [(gpu.hbm, "HBM")] * 2
        entries.append({"kernel": kernel.what, "flops": [x for x, _ in kernel.flops],
                        "bytes": [x for x, _ in few],
                        "limits": [kernel.flops[1][1], few[1][1]]})
    _, speed, limit = reach_of_gather(gpu, gather_registers)
    across = 1 / (1 / speed + 1 / gpu.pcie)  # First one, then the other.
    return [*entries,
            {"kernel": GATHER, "bytes": [2 * speed] * 2, "limits": ["", limit]},
            {"kernel": PINNED, "bytes": [across, min(speed, gpu.pcie)], "limits": ["", "PCIe"]}]


@dataclasses.dataclass
class Work:
    """As GpuWork of tests/gpu/bench/gpu_bench.h."""
    family: str
    ops: float
    bytes: float


def work_of(name):
    """Of a row of tests/gpu/bench by its name; None where nothing is computed of such rows."""
    if found := re.fullmatch(r"gemm \w+ \w+ (\d+)x(\d+)( in 8 segments)? M=(\d+)", name):
        n, k, m = (int(found.group(i)) for i in (1, 2, 4))
        out = 4 if found.group(3) else 2
        return Work("segments" if found.group(3) else "GEMM", 2.0 * m * n * k,
                    2.0 * n * k + 2 * m * k + out * m * n)
    if found := re.fullmatch(r"attention (prefill|decode) D=(\d+) heads (\d+)/(\d+) batch (\d+) "
                             r"context (\d+) (bf16|fp8_e4m3)", name):
        kind, kv_type = found.group(1), found.group(7)
        dim, heads, kv_heads, batch, keys = (int(found.group(i)) for i in range(2, 7))
        queries = keys if kind == "prefill" else 1
        kv = 2.0 * batch * keys * kv_heads * dim * (2 if kv_type == "bf16" else 1)
        return Work(f"{kind} {'' if kv_type == 'bf16' else 'fp8 '}D {dim}",
                    4.0 * batch * queries * (keys - (queries - 1) / 2) * heads * dim,
                    kv + 4.0 * batch * queries * heads * dim)
    if found := re.fullmatch(r"(gather|scatter|copy_blocks|gather \+ pinned|pinned \+ scatter|swap in|"
                             r"swap out) (\d+) blocks of (\d+) planes", name):
        moved = int(found.group(2)) * int(found.group(3)) * 16 * 8 * 128 * 2.0
        across = found.group(1) not in ("gather", "scatter", "copy_blocks")
        return Work("pinned" if across else "gather", 0, moved if across else 2 * moved)
    return None


@dataclasses.dataclass
class Reach:
    low: float  # Times a second, if nothing overlaps,
    high: float  # and if everything does.
    limit: str


def reach_of(entries, work):
    """As ReachTable of tests/gpu/bench: the best kernel whose name begins with the work's family."""
    best = Reach(0, 0, "")
    for entry in entries:
        if not entry["kernel"].startswith(work.family):
            continue
        seconds = [max(work.ops / entry["flops"][i] if "flops" in entry else 0,
                       work.bytes / entry["bytes"][i]) for i in (0, 1)]
        by_bytes = seconds[1] == work.bytes / entry["bytes"][1]
        if 1 / seconds[1] > best.high:
            best.limit = entry["limits"][by_bytes]
        best = Reach(max(best.low, 1 / seconds[0]), max(best.high, 1 / seconds[1]), best.limit)
    return best


def measured_rows(text):
    """Name -> microseconds, of a file of tests/bench/results (the last figure of a line counts) or of
    the rows that `gpu_tests bench --out` writes."""
    rows = {}
    for line in text.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            if "seconds" in row:
                rows[row["name"]] = 1e6 * row["seconds"]
            continue
        name = re.split(r"\s+(?:first|now)\s", line)[0].strip()
        if found := re.findall(r"(?:first|now)\s+([\d.]+) us\b", line):
            rows[name] = float(found[-1])
    return rows


def measured_lines(entries, rows):
    """Each row beside what was computed."""
    for name, microseconds in rows.items():
        if (work := work_of(name)) is None:
            continue
        reach, seconds = reach_of(entries, work), microseconds * 1e-6
        if not reach.high:
            continue
        amount, unit = ((work.bytes * 1e-9, "GB/s") if reach.limit in ("HBM", "occupancy", "PCIe") else
                        (work.ops * 1e-12, "TFLOP/s"))
        share = 1 / seconds / reach.high
        beyond = "  BEYOND" if share > ROUNDING else ""
        yield (f"  {name:62} {amount / seconds:7.1f} of {amount * reach.low:6.0f} to"
               f" {amount * reach.high:6.0f} {unit:7} {100 * share:5.1f}%  {reach.limit}{beyond}")


def best_measured(rows, pattern):
    """The best of the rows that are meant, in their unit."""
    found = [(name, work_of(name), 1e-6 * us) for name, us in rows.items() if re.search(pattern, name)]
    if not found:
        return ""
    if "prefill" in pattern or "M=(512" in pattern:
        return f"{max(work.ops / s for _, work, s in found) / 1e12:.0f} TFLOP/s"
    return f"{max(work.bytes / s for _, work, s in found) / 1e9:.0f} GB/s"


def last(text, pattern, unit):
    found = re.findall(pattern, text)
    return f"{found[-1]} {unit}" if found else ""


def measured_gap(text):
    """Of what the part `steps` of tests/gpu/run.sh says, as a line or within the results: what a step of
    the smallest model takes beyond the device's time, with one and with two in flight."""
    found = re.findall(r'{[^{}]*"gap_of_two"[^{}]*}', text.replace('\\"', '"'))
    if not found:
        return ""
    costs = json.loads(found[-1])
    return f"{costs['gap']:.0f} us with one in flight, {costs['gap_of_two']:.0f} us with two"


FEW, MANY = r"^gemm .*M=(1|2|4|8|16|32)$", r"^gemm .*M=(512|1024|2048|4096)$"
SEGMENTS = r" in 8 segments"


def goals(gpu, entries, published, text):
    """(goal, what is computed, its limit, what was measured) of each."""
    rows = measured_rows(text)

    def high(family, part):
        return max(((entry[part][1], entry["limits"][part == "bytes"]) for entry in entries
                    if entry["kernel"].startswith(family)), default=(0, ""))

    for dim, least in ((64, 75), (128, 75), (256, 45)):
        speed, limit = high(f"prefill D {dim}", "flops")
        says = f"{speed / 1e12:.0f} TFLOP/s"
        if gpu.architecture == "sm_90a":
            says += f", {100 * speed / 1e12 / published[dim]:.0f}% of {published[dim]}"
        measured = best_measured(rows, rf"^attention prefill D={dim} ")
        if measured:
            measured += f", {100 * float(measured.split()[0]) / published[dim]:.0f}%"
        yield f"prefill attention D {dim} >= {least}% of FlashAttention-3's", says, limit, measured
    for name, kv in ((" D 64", "bf16"), (" D 128", "bf16"), (" fp8 D 64", "fp8"), (" fp8 D 128", "fp8")):
        speed, limit = high("decode" + name, "bytes")
        if speed:
            yield (f"decode attention{name} >= 80% of copies", f"{speed / 1e9:.0f} GB/s", limit,
                   best_measured(rows, rf"^attention decode D={name.split()[-1]} .*{kv}"))
    for family, which in (("GEMM", rf"(?!.*{SEGMENTS})"), ("segments", rf"(?=.*{SEGMENTS})")):
        speed, limit = high(family, "flops")
        yield (f"{family} at M >= 512, >= 90% of cuBLASLt's", f"{speed / 1e12:.0f} TFLOP/s, "
               f"{100 * speed / gpu.peak:.0f}% of the peak", limit,
               best_measured(rows, which + MANY))
        speed, limit = high(family, "bytes")
        yield (f"{family} at M <= 32, >= 85% of copies", f"{speed / 1e9:.0f} GB/s", limit,
               best_measured(rows, which + FEW))
    read = bytes_of_step(*STEP)
    yield (f"8B decode step, batch {STEP[0]} at {STEP[1]} tokens, >= 75%",
           f"{1e3 * read / gpu.hbm:.2f} ms for {read / 1e9:.1f} GB", "HBM",
           last(text, r"8B 32 streams inter-token p50 +([\d.]+) ms", "ms"))
    metadata = bytes_of_metadata(*STEP)
    yield ("gap between two steps <= 100 us",
           f"{1e6 * metadata / gpu.pcie:.1f} us at least, for {metadata / 1e3:.0f} KB",
           "PCIe; beyond it the host, of which no machine code tells", measured_gap(text))
    speed, limit = high("pinned", "bytes")
    yield ("gather + pinned copy >= 40 GB/s", f"{speed / 1e9:.1f} GB/s", limit,
           best_measured(rows, r"^gather \+ pinned"))
    yield ("load >= 5 GB/s from page cache", f"{gpu.pcie / 1e9:.1f} GB/s",
           "PCIe; before it the host, which reads and rounds", last(text, r"\bload +([\d.]+) GB/s", "GB/s"))


def goal_lines(gpu, entries, published, text=""):
    for goal, says, limit, measured in goals(gpu, entries, published, text):
        yield f"  {gpu.name} {goal:55} {says:30} {limit}" + (
            f"; measured {measured or 'never'}" if text else "")
