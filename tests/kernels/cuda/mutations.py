#!/usr/bin/env python3
"""Breaks the kernels in one place at a time: the emulated tests must fail for each.

Usage: mutations.py [--build build/emulated] [--part N/OF] [--table FILE] [PART OF A NAME...]
Needs a build of the emulated preset. Prints a line for each mutation, with what found it, and exits
1 if one survives. --table also puts it into FILE, in place of what an earlier run said of it:
mutation_results.txt is one. Of some hours, so it is no part of the default tests, but of the nightly ones.
"""
import argparse
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import attention_decode_mutations
import attention_mutations
import device_mutations
import expert_mutations
import library_mutations
import mutation_table
import product_mutations
import runner_mutations
import sample_mutations
import sm90_mutations

ROOT = pathlib.Path(__file__).resolve().parents[3]
KERNELS, DEVICE = "cuda_kernels_test", "cuda_device_test"

# What both norms ask before they take vectors; a mutation is of one of them.
SPACE = "\n                       "
X_VECTORS = "HasVectors(args.x.data, args.x.dtype, args.dim, args.x_stride) &&"
OUT_VECTORS = "HasVectors(args.out.data, args.out.dtype, args.dim, args.out_stride) &&"
WEIGHT_VECTORS = "HasFloatVectors(args.weight, args.dim, args.dim) &&"

# (file, program, filter, name, text, replacement). A text occurs exactly once in its file, which is
# one of kernels/cuda or has a path; "a.h:b.cu" is a header with the file that is compiled for it.
MUTATIONS = [
    ("norms.cu", KERNELS, "*Norms*", "no barrier before a sum's scratch is written again",
     "    __syncthreads();  // The sum before this one has been read.\n", ""),
    ("norms.cu", KERNELS, "*Norms*", "no barrier before the warps' sums are read",
     "shared.warp[warp] = x;\n    __syncthreads();", "shared.warp[warp] = x;"),
    ("norms.cu", KERNELS, "*Norms*", "half a warp's sum", "int by = 16; by > 0", "int by = 8; by > 0"),
    ("norms.cu", KERNELS, "*Norms*", "variance counts elements behind the row",
     "i + j < args.dim ? v[j] - mean : 0.0f", "v[j] - mean"),
    ("norms.cu", KERNELS, "*Norms*", "no early return behind the last row",
     "  if (row >= args.num_tokens * args.rows_per_token) return;  // A whole warp: only rows of one.",
     ""),
    ("operands.h:norms.cu", KERNELS, "*Norms*", "a row's tail is loaded whole",
     "out[i] = i < valid ? ToFloat(row[i]) : 0.0f", "out[i] = ToFloat(row[i])"),
    ("operands.h:norms.cu", KERNELS, "*Norms*", "a row's tail is stored whole",
     "if (i < valid) row[i]", "row[i]"),
    ("cache_write.cu", KERNELS, "*CacheWrite*", "V takes K's scales", "ScaleOf(cache, head)", "ScaleOf(args.k_cache, head)"),
    ("cache_write.cu", KERNELS, "*CacheWrite*", "V's blocks lie as K's",
     "RowOf<Cache>(cache, steps, slot, head)", "RowOf<Cache>(is_key ? cache : args.k_cache, steps, slot, head)"),
    ("cache_groups.h:cache_write.cu", KERNELS, "*CacheWrite*", "a block's slots are a power of two",
     "slot % cache.block_size", "(slot & (cache.block_size - 1))"),
    ("cache_write.cu", KERNELS, "*Cache*", "negative slots are written",
     "  if (slot < 0) return;\n", ""),
    ("cache_groups.h:cache_write.cu", KERNELS, "*CacheWrite*", "V takes the scale of the first head",
     "cache.num_scales == 1 ? 0 : head", "0"),
    ("cache_write.cu", KERNELS, "*Cache*", "a ragged group is written whole",
     "i < kGroup && first + i < cache.dim", "i < kGroup"),
    ("rope_and_cache.cu", KERNELS, "*RopeAndCache*", "keys turn the other way",
     "fmaf(b[i], c[i], a[i] * s[i])", "fmaf(b[i], c[i], 0.0f - a[i] * s[i])"),
    ("rope_and_cache.cu", KERNELS, "*RopeAndCache*", "rotated keys are not rounded",
     "ToFloat(FromFloat<X>(fmaf(b[i], c[i], a[i] * s[i])))", "fmaf(b[i], c[i], a[i] * s[i])"),
    ("rope_and_cache.cu", KERNELS, "*RopeAndCache*", "negative slots are written", "  if (slot < 0) return;\n", ""),
    ("rope_and_cache.cu", KERNELS, "*RopeAndCache*", "queries without a slot do not turn",
     "if (unit < units.q) {", "if (args.slot_mapping[token] < 0) return;\n  if (unit < units.q) {"),
    ("rope_and_cache.cu", KERNELS, "*RopeAndCache*", "angles of the first token", "token * half + pair", "pair"),
    ("rope_and_cache.cu", KERNELS, "*RopeAndCache*", "what is not rotated lies at the front",
     "args.rotary_dim + (part - units.turns) * kGroup", "(part - units.turns) * kGroup"),
    ("rope_and_cache.cu", KERNELS, "*RopeAndCache*", "V takes K's scales", "ScaleOf(cache, head)", "ScaleOf(args.k_cache, head)"),
    ("rope_and_cache.cu", KERNELS, "*RopeAndCache*", "V's rows lie as K's", "is_key ? k_steps : v_steps", "k_steps"),
    ("rope_and_cache.cu", KERNELS, "*RopeAndCache*", "V has heads of K's size",
     ": cache.dim / kGroup;", ": args.k_cache.dim / kGroup;"),
    ("rope_and_cache.cu", KERNELS, "*RopeAndCache*", "threads behind the last unit",
     "  if (index >= args.num_tokens * units.each) return;\n", ""),
    ("rope_and_cache.cu", KERNELS, "*RopeAndCache*", "units of queries that are not there", "args.q ? args.num_heads * units.turns : 0",
     "args.num_heads * units.turns"),
    ("rope_and_cache.cu", KERNELS, "*RopeAndCache*", "vectors wherever queries lie",
     "         HasVectors(args.q.data, type, k.dim, args.q_stride) &&\n", ""),
    ("rope_and_cache.cu", KERNELS, "*RopeAndCache*", "rotations of whole groups only", " && args.rotary_dim % kGroup == 0", ""),
    ("cache_blocks.cu", KERNELS, "*Cache*", "pieces lose their tail",
     "if (at < count)", "if (at + 1 < count)"),
    ("cache_blocks.cu", KERNELS, "*Cache*", "only the first block of a run",
     "block < run.count; ++block) {\n    const auto* from", "block < 1; ++block) {\n    const auto* from"),
    ("cache_blocks.cu", KERNELS, "*Cache*", "staging memory of the first planes again",
     "+ first * args.num_blocks * bytes", ""),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "no pair more than there are", "  if (index >= args.num_tokens * args.half) return;\n", ""),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "positions by pair", "args.positions[index / args.half]", "args.positions[index % args.num_tokens]"),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "quarters trade places", "sin = quarter % 2 == 0 ? s : c", "sin = quarter % 2 == 0 ? c : s"),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "a sine's sign", "if (quarter >= 2) sin", "if (quarter > 2) sin"),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "a cosine's sign", "quarter == 1 || quarter == 2", "quarter == 1 || quarter == 3"),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "scaled before it is rounded",
     "static_cast<float>(cos) * args.attention_scaling", "static_cast<float>(cos * args.attention_scaling)"),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "rows in their own order", "args.rows[row] * args.from_stride", "row * args.from_stride"),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "rows of their source's stride", "to[row * args.to_stride", "to[row * args.from_stride"),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "vectors whatever the stride is",
     "static_cast<uint64_t>(args.dim * size | args.from_stride * size |\n                                                   args.to_stride * size)",
     "static_cast<uint64_t>(args.dim * size)"),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "vectors whatever a piece's size is",
     " |\n                             static_cast<uint64_t>(piece.bytes);", ";"),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "vectors wherever a piece goes",
     "reinterpret_cast<uintptr_t>(piece.from) |\n                             reinterpret_cast<uintptr_t>(piece.to)",
     "reinterpret_cast<uintptr_t>(piece.from)"),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "only the first parts of a piece", "i < count; i += step", "i < count; i += count"),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "only as many pieces as a grid has rows", "first < count; first += kMaxPieces", "first < 1; ++first"),
    ("rows.cu", KERNELS, "*SelectRows*:Rows*:CopyPieces*", "the first pieces again", "stream, pieces + first)", "stream, pieces)"),
    ("cuda_lane.cc", DEVICE, "*", "a lane does not wait for another's mark",
     "return ToStatus(cudaStreamWaitEvent(stream_, other.EventOf(number), 0), \"cudaStreamWaitEvent\");",
     "return absl::OkStatus();"),
    ("cuda_lane.cc", DEVICE, "*", "a lane waits for another mark", "stream_, other.EventOf(number)", "stream_, other.EventOf(number + 1)"),
    ("cuda_lane.cc", DEVICE, "*", "what has not run is done", "    if (error == cudaErrorNotReady) return false;", "    if (error == cudaErrorNotReady) return true;"),
    ("cuda_lane.cc", DEVICE, "*", "an event stands for two marks", "made_ - done_ == kMarks", "made_ - done_ == 2 * kMarks"),
    ("cuda_lane.cc", DEVICE, "*", "the error of a question is no error", "RETURN_IF_ERROR(ToStatus(error, \"cudaEventQuery\"));", ""),
    ("cuda_weights.cc", DEVICE, "Pack*", "a chunk is filled while it is copied",
     "  RETURN_IF_ERROR(Wait(*device_, chunk.copied));\n", ""),
    ("weight_rows.cc", DEVICE, "Pack*", "f16 is taken for bf16", "? RoundRow<F16, To>", "? RoundRow<Bf16, To>"),
    ("cuda_weights.cc", DEVICE, "Pack*", "parts one over the other", "    to += args.parts[i].num_rows * row_bytes;\n", ""),
    ("norms.cu", KERNELS, "*Norm*", "residuals lie densely",
     "args.residual + row * args.residual_stride", "args.residual + row * args.dim"),
    ("norms.cu", KERNELS, "*Norm*", "heads of a token lie anywhere",
     "row % args.rows_per_token * args.dim", "row % args.rows_per_token * args.x_stride"),
    ("norms.cu", KERNELS, "*Norm*", "a weight is what it says",
     "args.one_plus_weight ? 1.0f : 0.0f", "0.0f"),
    ("norms.cu", KERNELS, "*Norm*", "no epsilon of variances", "variance + args.eps", "variance"),
    ("norms.cu", KERNELS, "*Norm*", "no epsilon of means", "mean + args.eps", "mean"),
    ("norms.cu", KERNELS, "*Norm*", "vectors of residuals whatever their stride is",
     " &&\n                       HasFloatVectors(args.residual, args.dim, args.residual_stride)",
     ""),
    *[("norms.cu", KERNELS, "*Norm*", f"{name} ({norm})", vectors + between + own, between.lstrip() + own)
      for norm, own in (("RMS", "HasFloatVectors(args.residual"), ("layer", "HasFloatVectors(args.bias"))
      for name, vectors, between in (
          ("vectors of inputs whatever their stride is", X_VECTORS, f"{SPACE}{OUT_VECTORS}{SPACE}{WEIGHT_VECTORS}{SPACE}"),
          ("vectors of results whatever their stride is", OUT_VECTORS, f"{SPACE}{WEIGHT_VECTORS}{SPACE}"),
          ("vectors of weights wherever they lie", WEIGHT_VECTORS, SPACE))],
    ("norms.cu", KERNELS, "*Norm*", "vectors of biases wherever they lie",
     " &&\n                       HasFloatVectors(args.bias, args.dim, args.dim)", ""),
    ("norms.cu", KERNELS, "*Norm*", "the sum is not stored as residual",
     "      StoreFour(residual + i, args.dim - i, vectors, v);\n", ""),
    ("norms.cu", KERNELS, "*Norm*", "no residual stride of its own",
     "  if (args.residual_stride == 0) args.residual_stride = args.dim;\n", ""),
    ("cache_groups.h:cache_write.cu", KERNELS, "*CacheWrite*", "groups whatever the stride of blocks is",
     "         plane.block_stride % kGroup == 0 && ", "         "),
    ("cache_groups.h:cache_write.cu", KERNELS, "*CacheWrite*", "groups whatever the stride of heads is",
     "steps.head % kGroup == 0 && ", ""),
    ("cache_groups.h:cache_write.cu", KERNELS, "*CacheWrite*", "groups whatever the stride of tokens is",
     "steps.token % kGroup == 0 &&", ""),
    ("cache_groups.h:cache_write.cu", KERNELS, "*CacheWrite*", "groups whatever the size of heads is",
     "plane.dim % kGroup == 0 && ", ""),
    ("cache_groups.h:cache_write.cu", KERNELS, "*CacheWrite*", "groups wherever the cache lies",
     " && reinterpret_cast<uintptr_t>(plane.data) % bytes == 0", ""),
    ("cache_groups.h:cache_write.cu", KERNELS, "*CacheWrite*", "groups wherever K lies",
     "HasVectors(from.data, from.dtype, plane.dim, stride) &&", ""),
    ("cache_write.cu", KERNELS, "*Cache*", "threads for K alone",
     "std::max(args.k_cache.dim, args.v_cache.dim)", "args.k_cache.dim"),
    ("cache_write.cu", KERNELS, "*Cache*", "V has K's stride",
     "is_key ? args.key_stride : args.value_stride", "args.key_stride"),
    ("operands.h:cache_write.cu", KERNELS, "*Cache*", "a product with the inverse scale",
     "x == x ? x / scale", "x == x ? x * (1.0f / scale)"),
    ("cache_write.cu", KERNELS, "*Cache*", "layouts of V are not looked at",
     " || args.k_cache.layout != args.v_cache.layout", ""),
    ("cache_write.cu", KERNELS, "*Cache*", "threads behind the last token",
     "  if (index >= args.num_tokens * cache.num_heads * per_row) return;\n", ""),
    ("cache_blocks.cu", KERNELS, "*Cache*", "vectors whatever the size of a piece is",
     "  alignment |= static_cast<uint64_t>(pieces.bytes);\n", ""),
    ("cache_blocks.cu", KERNELS, "*Cache*", "vectors whatever the stride of blocks is",
     "  alignment |= static_cast<uint64_t>(places.block_bytes);\n", ""),
    ("cache_blocks.cu", KERNELS, "*Cache*", "vectors wherever a plane lies",
     "    alignment |= reinterpret_cast<uintptr_t>(places.planes[i]);\n", ""),
    ("cache_blocks.cu", KERNELS, "*Cache*", "vectors wherever staging memory lies",
     "    alignment |= reinterpret_cast<uintptr_t>(staged.staging);\n", ""),
    ("cache_blocks.cu", KERNELS, "*Cache*", "heads from the first",
     "planes[first + i].data + BytesOfHeads(planes[first + i], first_head)",
     "planes[first + i].data"),
    ("cache_blocks.cu", KERNELS, "*Cache*", "as many items as a grid has rows",
     "first < pieces.num_items; first += kMaxItems", "first < 1; ++first"),
    ("cache_blocks.cu", KERNELS, "*Cache*", "the first items again",
     "CopyKernel(Pieces pieces, int64_t first_item) {\n  const int64_t item = first_item + blockIdx.y;",
     "CopyKernel(Pieces pieces, int64_t first_item) {\n  const int64_t item = blockIdx.y;"),
    ("cache_blocks.cu", KERNELS, "*Cache*", "the first planes alone",
     "first < num_planes; first += kMaxPlanes", "first < 1; ++first"),
    ("cache_blocks.cu", "cuda_library_test", "*CacheLayout*", "planes with strides of their own",
     "return IsDenseBlock(plane) && (num_heads", "return (num_heads"),
    ("cache_blocks.cu", "cuda_library_test", "*CacheLayout*", "ranges of heads that lie apart",
     "(num_heads == 0 || plane.layout != CacheLayout::kNhd) &&", ""),
    ("cache_blocks.cu", "cuda_library_test", "*CacheLayout*", "destinations are not looked at",
     " ||\n      !AreAlike(args.destinations, args.num_planes, args.heads.count)", ""),
    ("attention.h:cuda_ops.cc", DEVICE, "*", "scratch memory whatever a call takes",
     "const bool fits = scratch_bytes <= scratch.size_bytes();", "const bool fits = true;"),
    ("cuda_weights.cc", DEVICE, "Pack*", "a row longer than a chunk",
     "std::max(kChunkBytes, row_bytes)", "kChunkBytes"),
    ("weight_rows.cc", DEVICE, "Pack*", "rows are not padded with zeros",
     "  std::memset(to, 0, static_cast<size_t>(count * stride));\n", ""),
    ("weight_rows.cc", DEVICE, "Pack*", "the first rows of a part again",
     "memcpy(to, part.Row(first,", "memcpy(to, part.Row(0,"),
    ("cuda_weights.cc", DEVICE, "Pack*", "a mark of another lane",
     "MarkNow(Lane::kCopies)", "MarkNow(Lane::kTransfer)"),
    ("cuda_weights.cc", DEVICE, "Pack*", "f16 where some are", "std::all_of(", "std::any_of("),
    ("cuda_device.cc", DEVICE, "*", "buffers are not counted", "  state_->taken += counted;\n", ""),
    ("cuda_device.cc", DEVICE, "*", "buffers are counted for ever", "    state->taken -= counted;\n", ""),
    ("cuda_device.cc", DEVICE, "*", "what hangs frees memory", "    if (state->hangs) return;\n", ""),
    ("cuda_device.cc", DEVICE, "*", "what hangs has not been given up", "state_->hangs = true;", ""),
    ("cuda_device.cc", DEVICE, "*", "lanes that hang are destroyed", "lane.Abandon();", ";"),
    ("cuda_device.cc", DEVICE, "*", "pinned memory is counted", "pinned ? 0 : CudaSlices", "CudaSlices"),
    ("cuda_device.cc", DEVICE, "*", "all lanes are one",
     "CudaLane& LaneOf(Lane lane) { return lanes_[static_cast<int>(lane)]",
     "CudaLane& LaneOf(Lane lane) { return lanes_[0]"),
    ("cuda_device.cc", DEVICE, "*", "pinned memory of the GPU",
     "pinned ? cudaHostAlloc(&data, size, cudaHostAllocDefault) : cudaMalloc(&data, size)",
     "cudaMalloc(&data, size)"),
    ("cuda_device.cc", DEVICE, "*", "what failed in a capture is captured",
     "enqueued.ok() ? ToStatus(ended, \"cudaStreamEndCapture\") : enqueued",
     "ToStatus(ended, \"cudaStreamEndCapture\")"),
    ("cuda_device.cc", DEVICE, "*", "K/V of any type",
     "needs.kv != needs.compute && !IsFp8(needs.kv)", "false"),
    ("cuda_device.cc", DEVICE, "*", "any vocabulary", "needs.vocab_size > kMaxVocabulary", "false"),
    ("cuda_device.cc", DEVICE, "*", "memory that is not there is an error of the device",
     "  if (error == cudaErrorMemoryAllocation) {", "  if (false) {"),
    ("weight_rows.cc", DEVICE, "Pack*", "columns of a wider matrix lie densely",
     "part.Row(row, args.k)", "part.data + row * args.k * SizeOf(part.dtype)"),
    ("cuda_weights.cc", DEVICE, "Pack*", "rows that lie one in the other",
     "    RETURN_IF_ERROR(RequireStrideOrDense(args.parts[i].row_stride, args.k, part + \".row_stride\"));\n",
     ""),
    ("cuda_ops.cc", DEVICE, "*", "a table of another device",
     "  RETURN_IF_ERROR(RequirePackedShards(args, WeightFormat::kCuda));\n", ""),
    *attention_decode_mutations.MUTATIONS,
    *attention_mutations.MUTATIONS,
    *device_mutations.MUTATIONS,
    *expert_mutations.MUTATIONS,
    *library_mutations.MUTATIONS,
    *product_mutations.MUTATIONS,
    *runner_mutations.MUTATIONS,
    *sample_mutations.MUTATIONS,
    *sm90_mutations.MUTATIONS,
]


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def path_of(file):
    return pathlib.Path(file if "/" in file else f"kernels/cuda/{file}")


class Build:
    """How the emulated preset compiles and links."""

    def __init__(self, folder):
        self.folder = folder
        self.commands = {pathlib.Path(entry["file"]): entry for entry in
                         json.loads((folder / "compile_commands.json").read_text())}
        self.links = {}
        # Sources that are compiled in a batch with others, which one file includes.
        self.batches = {}
        for file in self.commands:
            if file.parent.name == "Unity":
                for source in re.findall(r'#include "(.+)"', file.read_text()):
                    self.batches.setdefault(pathlib.Path(source), file)

    def compile(self, source, scratch, out):
        """`source` with what `scratch` has instead of files of the tree."""
        unit = scratch / source.relative_to(ROOT)
        entry = self.commands.get(source)
        if entry is None:
            batch = self.batches[source]
            entry = self.commands[batch]
            text = batch.read_text().replace(f'"{source}"', f'"{unit}"')
            unit = scratch / "batch.cxx"
            unit.write_text(text)
        words = [w for w in shlex.split(entry["command"]) if not w.endswith("ccache")]
        words[words.index("-o") + 1] = str(out)
        words[words.index("-c") + 1] = str(unit)
        words.insert(1, f"-I{scratch}")
        return run(words, cwd=entry["directory"])

    def link(self, program, mutated, out):
        """The mutated object comes first, so the archive's is not taken."""
        if program not in self.links:
            lines = run(["ninja", "-C", self.folder, "-t", "commands", program]).stdout
            self.links[program] = re.search(r"&& (.*?) &&", lines.splitlines()[-1]).group(1)
        words = [w for w in shlex.split(self.links[program]) if not w.endswith("ccache")]
        at = words.index("-o") + 1
        words[at] = str(out)
        words.insert(at + 1, str(mutated))
        return run(words, cwd=self.folder)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def find(build, mutation, folder, limit_s):
    """What found a mutation; None if nothing did."""
    files, program, test_filter, _, text, replacement = mutation
    file, _, unit = files.partition(":")
    file, unit = path_of(file), path_of(unit or file)
    content = (ROOT / file).read_text()
    if content.count(text) != 1:
        return None, f"its text occurs {content.count(text)} times"
    scratch = folder / "tree"
    shutil.rmtree(scratch, ignore_errors=True)
    write(scratch / unit, (ROOT / unit).read_text())
    write(scratch / file, content.replace(text, replacement))
    built = build.compile(ROOT / unit, scratch, folder / "mutated.o")
    if built.returncode != 0:
        return None, built.stderr[-500:]
    linked = build.link(program, folder / "mutated.o", folder / "program")
    if linked.returncode != 0:
        return None, linked.stderr[-500:]
    try:
        tested = run([folder / "program", f"--gtest_filter={test_filter}", "--gtest_fail_fast"],
                     timeout=limit_s, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return f"it has not ended after {limit_s:g} s", ""
    if tested.returncode == 0:
        return None, "every test passed"
    message = re.search(r"^.*(?:\brace|outside|in flight|uninitialised|misaligned|divergence|"
                        r"deadlock|exits with).*$", tested.stdout, re.M)
    if message:
        return message.group(0)[-150:].strip(), ""
    failed = re.findall(r"^\[  FAILED  \] ([\w/.]+)", tested.stdout, re.M)
    return f"values: {failed[0]}" if failed else "a crash", ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/emulated")
    parser.add_argument("--part", default="1/1", help="each OF-th from the N-th on")
    parser.add_argument("--table", type=pathlib.Path, help="what found each is put into it")
    parser.add_argument("--limit", type=float, default=900,
                        help="seconds for the tests of one: much longer than any program takes")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    first, step = map(int, arguments.part.split("/"))
    build = Build(arguments.build.resolve())
    chosen = [m for m in MUTATIONS
              if not arguments.names or any(name in m[0] + " " + m[3] for name in arguments.names)]
    chosen = chosen[first - 1::step]
    table = mutation_table.Table(MUTATIONS, arguments.table) if arguments.table else None
    survivors = 0
    with tempfile.TemporaryDirectory() as scratch:
        for mutation in chosen:
            found, why = find(build, mutation, pathlib.Path(scratch), arguments.limit)
            survivors += found is None
            says = found or mutation_table.SURVIVES + why
            print(f"{mutation_table.key_of(mutation)}: {says}", flush=True)
            if table:
                table.put(mutation, says)
    print(f"{len(chosen)} mutations, {survivors} survive")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
