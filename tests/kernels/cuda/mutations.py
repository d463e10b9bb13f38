#!/usr/bin/env python3
"""Breaks the kernels in one place at a time: the emulated tests must fail for each.

Usage: mutations.py [--build build/emulated] [PART OF A NAME...]
Needs a build of the emulated preset. Prints a line for each mutation, with what found it, and exits
1 if one survives. Some four seconds each, so it is no part of the default tests.
"""
import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
KERNELS, ATTENTION, SAMPLE = "cuda_kernels_test", "cuda_attention_test", "cuda_sample_test"
DEVICE = "cuda_device_test"

# (file, program, filter, name, text, replacement)
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
    ("elementwise.cu", KERNELS, "*Elementwise*", "rope turns the other way",
     "fmaf(b, c, a * s)", "fmaf(b, c, 0.0f - a * s)"),
    ("elementwise.cu", KERNELS, "*Advance*", "padding keeps its slot",
     "    args.slot_mapping[i] = -1;\n", ""),
    ("cache_write.cu", KERNELS, "*Cache*", "negative slots are written",
     "  if (slot < 0) return;\n", ""),
    ("cache_write.cu", KERNELS, "*Cache*", "V takes the scale of the first head",
     "cache.num_scales == 1 ? 0 : head", "0"),
    ("cache_write.cu", KERNELS, "*Cache*", "a ragged group is written whole",
     "i < kGroup && first + i < cache.dim", "i < kGroup"),
    ("cache_blocks.cu", KERNELS, "*Cache*", "pieces lose their tail",
     "if (at < count)", "if (at + 1 < count)"),
    ("cache_blocks.cu", KERNELS, "*Cache*", "only the first block of a run",
     "block < run.count", "block < 1"),
    ("cache_blocks.cu", KERNELS, "*Cache*", "staging memory of the first planes again",
     "+ first * args.num_blocks * bytes", ""),
    ("gemm.cu", KERNELS, "*Gemm*", "no barrier between tiles of k",
     "    __syncthreads();  // The tile is there, and nobody reads the one that is overwritten next.\n",
     ""),
    ("gemm.cu", KERNELS, "*Gemm*", "waits for one group less",
     "WaitCopies<Shape::kStages - 2>", "WaitCopies<Shape::kStages - 1>"),
    ("gemm.cu", KERNELS, "*Gemm*", "no wait at all",
     "    WaitCopies<Shape::kStages - 2>();\n", ""),
    ("gemm.cu", KERNELS, "*Gemm*", "rows behind the matrix are read",
     "const bool is_row = first + row < from.count;", "const bool is_row = true;"),
    ("gemm.cu", KERNELS, "*Gemm*", "a tail of k is not masked",
     "is_row && column + j < k", "is_row"),
    ("gemm.cu", KERNELS, "*Gemm*", "no swizzle where fragments are loaded",
     "LoadMatrices(a[i], ChunkOf(rows, warp_row + 16 * i + lane % 16, 2 * step + lane / 16))",
     "LoadMatrices(a[i], &rows[warp_row + 16 * i + lane % 16][(2 * step + lane / 16) * 8])"),
    ("gemm.cu", KERNELS, "*Gemm*", "halves of b trade places",
     "b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]", "b[j / 2][j % 2 * 2 + 1], b[j / 2][j % 2 * 2]"),
    ("gemm.cu", KERNELS, "*Gemm*", "bias by the wrong index",
     "problem.rows_are_weights ? row : column", "column"),
    ("gemm.cu", KERNELS, "*Gemm*", "columns behind the matrix are stored",
     " || column >= problem.columns.count", ""),
    ("attention.cu", ATTENTION, "*", "no barrier before K is read",
     "    __syncthreads();  // K is there; nobody reads V any more.\n", ""),
    ("attention.cu", ATTENTION, "*", "no barrier before V is read",
     "    __syncthreads();  // V is there; nobody reads K any more.\n", ""),
    ("attention.cu", ATTENTION, "*", "no wait for K",
     "    WaitCopies<0>();\n    __syncthreads();  // K", "    __syncthreads();  // K"),
    ("attention.cu", ATTENTION, "*", "no wait for V",
     "    WaitCopies<0>();\n    __syncthreads();  // V", "    __syncthreads();  // V"),
    ("attention.cu", ATTENTION, "*", "block table one entry late",
     "table[key / cache.block_size]", "table[(key + 1) / cache.block_size]"),
    ("attention.cu", ATTENTION, "*", "one key too many is loaded",
     "key < work.keys.end && column < cache.dim", "key <= work.keys.end && column < cache.dim"),
    ("attention.cu", ATTENTION, "*", "keys before the window are loaded",
     "key >= work.keys.begin && key", "key"),
    ("attention.cu", ATTENTION, "*", "columns behind the head are loaded",
     "key < work.keys.end && column < cache.dim", "key < work.keys.end"),
    ("attention.cu", ATTENTION, "*", "a row sees one key too many",
     "key < row.keys.begin || key >= row.keys.end", "key < row.keys.begin || key > row.keys.end"),
    ("attention.cu", ATTENTION, "*", "V is not transposed",
     "LoadMatricesTransposed(b", "LoadMatrices(b"),
    ("attention.cu", ATTENTION, "*", "rows 8 to 15 get the probabilities of rows 0 to 7",
     "{probabilities[2 * j][0], probabilities[2 * j][1],",
     "{probabilities[2 * j][0], probabilities[2 * j][0],"),
    ("attention.cu", ATTENTION, "*", "sums are not scaled to a new maximum",
     "      sums[d][2 * h] *= factor;\n", ""),
    ("attention.cu", ATTENTION, "*", "a row's maximum is that of two lanes",
     "return fmaxf(x, __shfl_xor_sync(~0u, x, 2))", "return x"),
    ("attention.cu", ATTENTION, "*", "no fold at multiples of 512",
     "next % kPartialKeys == 0 || ", ""),
    ("attention.cu", ATTENTION, "*", "partials of a split begin one step late",
     "static_cast<int>(blockIdx.y) * kPartialKeys", "static_cast<int>(blockIdx.y) * kPartialKeys + 64"),
    ("attention.cu", ATTENTION, "*", "the fold skips the first partial",
     "const int first = keys.begin / kPartialKeys;", "const int first = keys.begin / kPartialKeys + 1;"),
    ("attention.cu", ATTENTION, "*", "heads of a group trade queries",
     "(work.first_row + row) % work.group;\n    const int64_t at = live",
     "(work.first_row + row + 1) % work.group;\n    const int64_t at = live"),
    ("attention.cu", ATTENTION, "*", "the LSE is written by every lane",
     "work.kv_head, lane % 4 == 0)", "work.kv_head, true)"),
    ("attention_rows.h:attention.cu", ATTENTION, "*", "the window is one key longer",
     "position - scores.window_left)", "position - scores.window_left - 1)"),
    ("attention_rows.h:attention.cu", ATTENTION, "*", "V's scale is K's of another head",
     "ScaleOf(args.v_cache, kv_head)", "ScaleOf(args.v_cache, 0)"),
    ("attention_rows.h:attention.cu", ATTENTION, "*", "a fold keeps the older maximum",
     "const float max = fmaxf(total.max, partial.max);\n  const FoldFactors",
     "const float max = partial.max;\n  const FoldFactors"),
    ("sample.cu", SAMPLE, "*", "of equals the higher id",
     "<< 32 | ~static_cast<uint32_t>(id)", "<< 32 | static_cast<uint32_t>(id)"),
    ("sample.cu", SAMPLE, "*", "zeros differ by their sign", "x == 0 ? 0 : ToBits(x)", "ToBits(x)"),
    ("sample.cu", SAMPLE, "*", "a NaN is below all", "if (x != x) return ~0u;", "if (x != x) return 0u;"),
    ("sample.cu", SAMPLE, "*", "negative numbers in the wrong order", "bits >> 31 != 0 ? ~bits", "bits >> 31 != 0 ? bits"),
    ("sample.cu", SAMPLE, "*", "weights in other units", "(bits + 1023 + 44)", "(bits + 1023 + 43)"),
    ("sample.cu", SAMPLE, "*", "no rounding to the nearest power", "kNearest = 0x1.8p52", "kNearest = 0x1.8p51"),
    ("sample.cu", SAMPLE, "*", "weights without a lower end", "power > -64.0 ? power : -64.0", "power"),
    ("sample.cu", SAMPLE, "*", "weights in single precision",
     "(double{x} - double{max}) * scale", "static_cast<double>(x - max) * scale"),
    ("sample.cu", SAMPLE, "*", "the first alternative again and again", "if (place < last)", "if (place <= last)"),
    ("sample.cu", SAMPLE, "*", "penalized by each occurrence",
     "const int times = atomicExch(&counts[token], 0);", "const int times = counts[token];"),
    ("sample.cu", SAMPLE, "*", "counts are left",
     "atomicExch(&counts[token], 0);\n    if (times > 0)",
     "atomicExch(&counts[token], -1);\n    if (times > 0)"),
    ("sample.cu", SAMPLE, "*", "no barrier before counts are taken",
     "row.num_emitted, add);\n    __syncthreads();", "row.num_emitted, add);"),
    ("sample.cu", SAMPLE, "*", "the prompt is not penalized",
     "    ForList(args.history, row.first_prompt, row.num_prompt, add);\n", ""),
    ("sample.cu", SAMPLE, "*", "no barrier behind the copy of a row",
     "x[id] = raw[id]; });\n  __syncthreads();", "x[id] = raw[id]; });"),
    ("sample.cu", SAMPLE, "*", "no barrier between bias and mask",
     "x[bias.token] += bias.bias; });\n  __syncthreads();", "x[bias.token] += bias.bias; });"),
    ("sample.cu", SAMPLE, "*", "no barrier behind the mask",
     "  });\n  __syncthreads();\n  Penalize", "  });\n  Penalize"),
    ("sample.cu", SAMPLE, "*", "tokens outside the vocabulary are masked", "if (token >= 0 && token < args.vocab_size) ", ""),
    ("sample.cu", SAMPLE, "*", "a mask without an atomic", "atomicExch(&x[token], -INFINITY)", "x[token] = -INFINITY"),
    ("sample.cu", SAMPLE, "*", "a share is rounded down", "rounded = low + ((Mass{1} << 63) - 1)", "rounded = low"),
    ("sample.cu", SAMPLE, "*", "a share loses its carry", "+ (rounded < low ? 1 : 0)", ""),
    ("sample.cu", SAMPLE, "*", "min_p drops its own bound", "weight < row.least_weight", "weight <= row.least_weight"),
    ("sample.cu", SAMPLE, "*", "top_k of all tokens is a cut", "row.top_k < vocab_size", "row.top_k <= vocab_size + 5"),
    ("sample.cu", SAMPLE, "*", "a draw from the low bits", "return __umul64hi(row.key, sum);", "return row.key * sum;"),
    ("sample.cu", SAMPLE, "*", "top_p is not applied", "top_p.Keeps(weight, id) ? weight : 0", "weight"),
    ("sample.cu", SAMPLE, "*", "sums of the adjusted row", "const float* x = raw;\n    if", "const float* x = raw + 1;\n    if"),
    ("sample.cu", SAMPLE, "*", "the likeliest token is that of the raw row",
     "      best = Likeliest(shared, ids, x);\n", ""),
    ("sample.cu", SAMPLE, "*", "draws from weights of an infinite maximum", "row.scale > 0 && IsFinite(x[best])", "row.scale > 0"),
    ("sample.cu", SAMPLE, "*", "a rank counts itself", "PlaceOf(x[id], id) > own", "PlaceOf(x[id], id) >= own"),
    ("sample.cu", SAMPLE, "*", "rows in the order of results", "args.logits + row.logit_row", "args.logits + blockIdx.x"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "the last id of a chunk is left out", "end_ = min(count, begin_ + chunk)",
     "end_ = min(count, begin_ + chunk - 1)"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "half a warp's sum", "int by = 16; by > 0; by /= 2) x +=", "int by = 8; by > 0; by /= 2) x +="),
    ("sample_block.h:sample.cu", SAMPLE, "*", "no barrier before the warps' values are written again",
     "  __syncthreads();  // The values before these have been read.\n", ""),
    ("sample_block.h:sample.cu", SAMPLE, "*", "no barrier before the warps' values are read",
     "= of_warp;\n  __syncthreads();", "= of_warp;"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "a prefix with its own warp", "if (warp < own)", "if (warp <= own)"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "the id before the one that exceeds", "up_to > target", "up_to >= target"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "the walk forgets its sum", "      sum = __shfl_sync(~0u, up_to, 31);\n", ""),
    ("sample_block.h:sample.cu", SAMPLE, "*", "no barrier before a found id is read",
     "  __syncthreads();\n  return shared.id;", "  return shared.id;"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "of equals one too few", "id <= last)", "id < last)"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "a bin that reaches exactly does not",
     "sum + shared.bins[digit] < missing", "sum + shared.bins[digit] <= missing"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "the sum of all bins does not reach exactly", "sums.all < missing", "sums.all <= missing"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "greater digits are forgotten", "above + sum;", "sum;"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "digits below bin 1 are forgotten", "    above += sums.all;\n", ""),
    ("sample_block.h:sample.cu", SAMPLE, "*", "no barrier before a digit is read",
     "  __syncthreads();\n  above = shared.above;", "  above = shared.above;"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "greater bins reach it already",
     "sum < missing && ", ""),
    ("sample_block.h:sample.cu", SAMPLE, "*", "a thread's bins reach exactly and do not count",
     "missing - sum <= own", "missing - sum < own"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "no barrier behind cleared bins", "= 0;\n    __syncthreads();\n    ids", "= 0;\n    ids"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "no barrier behind filled bins",
     "    });\n    __syncthreads();\n    key =", "    });\n    key ="),
    ("sample_block.h:sample.cu", SAMPLE, "*", "all keys at every digit", " || of_id >> shift >> kDigitBits != key", ""),
    ("sample_block.h:sample.cu", SAMPLE, "*", "of equals one too many",
     "(wanted - above + each - 1) / each", "(wanted - above + each) / each"),
    ("sample_block.h:sample.cu", SAMPLE, "*", "of equals as many as fit", "(wanted - above + each - 1) / each", "(wanted - above) / each"),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "no pair more than there are", "  if (index >= args.num_tokens * args.half) return;\n", ""),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "positions by pair", "args.positions[index / args.half]", "args.positions[index % args.num_tokens]"),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "quarters trade places", "sin = quarter % 2 == 0 ? s : c", "sin = quarter % 2 == 0 ? c : s"),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "a sine's sign", "if (quarter >= 2) sin", "if (quarter > 2) sin"),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "a cosine's sign", "quarter == 1 || quarter == 2", "quarter == 1 || quarter == 3"),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "scaled before it is rounded",
     "static_cast<float>(cos) * args.attention_scaling", "static_cast<float>(cos * args.attention_scaling)"),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "rows in their own order", "args.rows[row] * args.from_stride", "row * args.from_stride"),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "rows of their source's stride", "to[row * args.to_stride", "to[row * args.from_stride"),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "vectors whatever the stride is",
     "static_cast<uint64_t>(args.dim * size | args.from_stride * size |\n                                                   args.to_stride * size)",
     "static_cast<uint64_t>(args.dim * size)"),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "vectors whatever a piece's size is",
     " |\n                             static_cast<uint64_t>(piece.bytes);", ";"),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "vectors wherever a piece goes",
     "reinterpret_cast<uintptr_t>(piece.from) |\n                             reinterpret_cast<uintptr_t>(piece.to)",
     "reinterpret_cast<uintptr_t>(piece.from)"),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "only the first parts of a piece", "i < count; i += step", "i < count; i += count"),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "only as many pieces as a grid has rows", "first < count; first += kMaxPieces", "first < 1; ++first"),
    ("rows.cu", KERNELS, "Rows*:CopyPieces*", "the first pieces again", "stream, pieces + first)", "stream, pieces)"),
    ("cuda_lane.cc", DEVICE, "*", "a lane does not wait for another's mark",
     "return ToStatus(cudaStreamWaitEvent(stream_, other.EventOf(number), 0), \"cudaStreamWaitEvent\");",
     "return absl::OkStatus();"),
    ("cuda_lane.cc", DEVICE, "*", "a lane waits for another mark", "stream_, other.EventOf(number)", "stream_, other.EventOf(number + 1)"),
    ("cuda_lane.cc", DEVICE, "*", "what has not run is done", "if (error == cudaErrorNotReady) return false;", "if (error == cudaErrorNotReady) return true;"),
    ("cuda_lane.cc", DEVICE, "*", "an event stands for two marks", "made_ - done_ == kMarks", "made_ - done_ == 2 * kMarks"),
    ("cuda_lane.cc", DEVICE, "*", "the error of a question is no error", "RETURN_IF_ERROR(ToStatus(error, \"cudaEventQuery\"));", ""),
    ("cuda_weights.cc", DEVICE, "Pack*", "a chunk is filled while it is copied",
     "  RETURN_IF_ERROR(Wait(*device_, chunk.copied, kCopyLimit));\n", ""),
    ("cuda_weights.cc", DEVICE, "Pack*", "f16 is taken for bf16", "RoundRow<F16>(from, count, dtype, to)", "RoundRow<Bf16>(from, count, dtype, to)"),
    ("cuda_weights.cc", DEVICE, "Pack*", "parts one over the other", "      to += rows * row_bytes;\n", ""),
    ("attention.cu", ATTENTION, "*", "keys of a tile begin where its last row's do",
     "visible(work.first_row).begin", "visible(work.first_row + work.num_rows - 1).begin"),
    ("attention.cu", ATTENTION, "*", "keys of a tile end where its first row's do",
     "visible(work.first_row + work.num_rows - 1).end", "visible(work.first_row).end"),
    ("attention.cu", ATTENTION, "*", "a split looks at all keys behind its first",
     "    work.keys.end = min(work.keys.end, first_key + kPartialKeys);\n", ""),
    ("attention.cu", ATTENTION, "*", "heads and sequences trade blocks",
     "blockIdx.x / tiles % num_kv_heads", "blockIdx.x % num_kv_heads"),
    ("attention.cu", ATTENTION, "*", "queries of the first tile again",
     "const int query = (work.first_row + row) / work.group;",
     "const int query = row / work.group;"),
    ("attention.cu", ATTENTION, "*", "positions of the first tile again",
     "PositionOf((work.first_row + row) / work.group)", "PositionOf(row / work.group)"),
    ("attention.cu", ATTENTION, "*", "heads lie densely whatever their stride",
     "cache.head_stride == 0 ? cache.block_size * token_stride : cache.head_stride",
     "cache.block_size * token_stride"),
    ("attention.cu", ATTENTION, "*", "tokens lie densely whatever their stride",
     "cache.token_stride == 0 ? cache.dim : cache.token_stride", "cache.dim"),
    ("attention.cu", ATTENTION, "*", "e5m2 is read as e4m3",
     "if (cache.dtype == DType::kFp8E4M3)", "if (IsFp8(cache.dtype))"),
    ("attention.cu", ATTENTION, "*", "slopes of the first sequence",
     "work.s * args.scores.alibi_stride + head", "head"),
    ("attention.cu", ATTENTION, "*", "a partial that saw no key is folded",
     "if (state.max > MinusInfinity()) by = Fold", "by = Fold"),
    ("attention.cu", ATTENTION, "*", "steps begin at the window",
     "work.keys.begin / kStepKeys * kStepKeys", "work.keys.begin"),
    ("attention.cu", ATTENTION, "*", "rows behind a sequence are folded",
     "  if (query >= sequence.num_queries) return;\n", ""),
    ("attention.cu", ATTENTION, "*", "an empty partial of a split is folded",
     "      if (state[0] == MinusInfinity()) continue;  // As in FoldPartial.\n", ""),
    ("attention.cu", ATTENTION, "*", "a fold ends behind 128 columns",
     "column < (dim + kThreads - 1) / kThreads * kThreads;", "column < kThreads;"),
    ("attention.cu", ATTENTION, "*", "rows behind the queries are loaded",
     "row < work.num_rows && column < dim", "column < dim"),
    ("attention_rows.h:attention.cu", ATTENTION, "*", "a chunk undoes the window",
     "keys.begin = max(keys.begin, position / scores.local_chunk * scores.local_chunk)",
     "keys.begin = position / scores.local_chunk * scores.local_chunk"),
    ("attention_rows.h:attention.cu", ATTENTION, "*", "the window's end overflows",
     "int64_t{position} + scores.window_right", "position + scores.window_right"),
    ("gemm.cu", KERNELS, "*Gemm*", "the last chunk of k is copied whole",
     "aligned && column + kChunk <= k", "aligned"),
    ("gemm.cu", KERNELS, "*Gemm*", "aligned whatever the stride is",
     " && stride % gemm::kChunk == 0", ""),
    ("gemm.cu", KERNELS, "*Gemm*", "aligned wherever it lies",
     "reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0", "true"),
    ("gemm.cu", KERNELS, "*Gemm*", "the next tile is loaded before the barrier",
     "    __syncthreads();  // The tile is there, and nobody reads the one that is overwritten next.\n    load(tile + Shape::kStages - 1);",
     "    load(tile + Shape::kStages - 1);\n    __syncthreads();"),
    ("gemm.cu", KERNELS, "*Gemm*", "no empty groups",
     "    CommitCopies();  // Also", "    if (tile < tiles) CommitCopies();  // Also"),
    ("gemm.cu", KERNELS, "*Gemm*", "rows behind the matrix are stored",
     "row >= problem.rows.count || ", ""),
    ("gemm.cu", KERNELS, "*Gemm*", "the alignment of the tokens is forgotten",
     "IsAligned(args.a, args.a_stride) && ", ""),
    ("gemm.cu", KERNELS, "*Gemm*", "results lie densely",
     ".column_stride = tokens_are_rows ? 1 : args.out_stride",
     ".column_stride = tokens_are_rows ? 1 : packed.n()"),
    ("gemm.cu", KERNELS, "*Gemm*", "rows of weights by their length",
     "RowStride(packed.k()),", "packed.k(),"),
    ("gemm.cu", KERNELS, "*Gemm*", "weights of another type",
     " || args.a.dtype != weights.dtype()", ""),
    ("gemm.cu", KERNELS, "*Gemm*", "the last tile of k is left out",
     "(problem.k + kTileK - 1) / kTileK", "problem.k / kTileK"),
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
    ("norms.cu", KERNELS, "*Norm*", "vectors of weights wherever they lie",
     "HasFloatVectors(args.weight, args.dim, args.dim) &&", ""),
    ("norms.cu", KERNELS, "*Norm*", "vectors of results whatever their stride is",
     "HasVectors(args.out.data, args.out.dtype, args.dim, args.out_stride) &&", ""),
    ("norms.cu", KERNELS, "*Norm*", "vectors of inputs whatever their stride is",
     "HasVectors(args.x.data, args.x.dtype, args.dim, args.x_stride) &&", ""),
    ("norms.cu", KERNELS, "*Norm*", "vectors of biases wherever they lie",
     " &&\n                       HasFloatVectors(args.bias, args.dim, args.dim)", ""),
    ("norms.cu", KERNELS, "*Norm*", "the sum is not stored as residual",
     "      StoreFour(residual + i, args.dim - i, vectors, v);\n", ""),
    ("norms.cu", KERNELS, "*Norm*", "no residual stride of its own",
     "  if (args.residual_stride == 0) args.residual_stride = args.dim;\n", ""),
    ("cache_write.cu", KERNELS, "*Cache*", "groups whatever the stride of blocks is",
     "         plane.block_stride % kGroup == 0 && ", "         "),
    ("cache_write.cu", KERNELS, "*Cache*", "groups whatever the stride of heads is",
     "steps.head % kGroup == 0 && ", ""),
    ("cache_write.cu", KERNELS, "*Cache*", "groups whatever the stride of tokens is",
     "steps.token % kGroup == 0 &&", ""),
    ("cache_write.cu", KERNELS, "*Cache*", "groups whatever the size of heads is",
     "plane.dim % kGroup == 0 && ", ""),
    ("cache_write.cu", KERNELS, "*Cache*", "groups wherever the cache lies",
     " && reinterpret_cast<uintptr_t>(plane.data) % bytes == 0", ""),
    ("cache_write.cu", KERNELS, "*Cache*", "groups wherever K lies",
     "HasVectors(from.data, from.dtype, plane.dim, stride) &&", ""),
    ("cache_write.cu", KERNELS, "*Cache*", "threads for K alone",
     "std::max(args.k_cache.dim, args.v_cache.dim)", "args.k_cache.dim"),
    ("cache_write.cu", KERNELS, "*Cache*", "V has K's stride",
     "is_key ? args.key_stride : args.value_stride", "args.key_stride"),
    ("cache_write.cu", KERNELS, "*Cache*", "a product with the inverse scale",
     "x /= scale", "x *= 1.0f / scale"),
    ("cache_write.cu", KERNELS, "*Cache*", "packed caches",
     " ||\n      args.k_cache.layout == CacheLayout::kPacked || args.v_cache.layout == CacheLayout::kPacked",
     ""),
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
     "first_item + blockIdx.y", "blockIdx.y"),
    ("cache_blocks.cu", KERNELS, "*Cache*", "the first planes alone",
     "first < num_planes; first += kMaxPlanes", "first < 1; ++first"),
    ("cache_blocks.cu", KERNELS, "*Cache*", "planes with strides of their own",
     " && plane.head_stride == 0 && plane.token_stride == 0", ""),
    ("cache_blocks.cu", KERNELS, "*Cache*", "ranges of heads that lie apart",
     " && (num_heads == 0 || plane.layout == CacheLayout::kHnd)", ""),
    ("cache_blocks.cu", KERNELS, "*Cache*", "destinations are not looked at",
     " ||\n      !AreDense(args.destinations, args.num_planes, args.heads.count)", ""),
    ("elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "threads behind the last pair",
     "  if (index >= args.num_tokens * args.num_heads * half) return;\n", ""),
    ("elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "interleaved pairs are halves",
     "args.interleaved ? 2 * pair + 1 : pair + half", "pair + half"),
    ("elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "angles by head",
     "args.cos[token * half + pair]", "args.cos[head * half + pair]"),
    ("elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "the upper half behind whole vectors",
     "gate + args.dim, left", "gate + per_row * 4, left"),
    ("elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "threads behind the last four",
     "  if (left <= 0) return;\n", ""),
    ("elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "capped rows lie densely",
     "index / per_row * args.x_stride + i", "index / per_row * args.dim + i"),
    ("elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "no stride of the table",
     "token * args.table_stride + i", "token * args.dim + i"),
    ("elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "no stride of gates",
     "row * args.gate_up_stride + i", "row * 2 * args.dim + i"),
    ("elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "gates of no stride are not dense",
     "  if (args.gate_up_stride == 0) args.gate_up_stride = 2 * args.dim;\n", ""),
    ("elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "results of no stride are not dense",
     "  if (args.out_stride == 0) args.out_stride = args.dim;\n", ""),
    ("elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "embeddings of no stride are not dense",
     "call.out_stride == 0 ? table.k() : call.out_stride", "call.out_stride"),
    ("elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "sequences do not grow",
     "  args.seq_lens[i] = position + 1;\n", ""),
    ("elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "a slot in the first block",
     "block * args.block_size + position % args.block_size", "position"),
    ("floats.h:elementwise.cu", KERNELS, "*Elementwise*:*Advance*", "bf16: ties away from zero",
     "bits + 0x7fff + (bits >> 16 & 1)", "bits + 0x8000"),
    ("cuda_ops.cc", DEVICE, "*", "scratch memory whatever a call takes",
     "const bool fits = ScratchBytes(args) <= scratch_.size_bytes();", "const bool fits = true;"),
    ("cuda_weights.cc", DEVICE, "Pack*", "a row longer than a chunk",
     "std::max(kChunkBytes, row_bytes)", "kChunkBytes"),
    ("cuda_weights.cc", DEVICE, "Pack*", "rows are not padded with zeros",
     "      std::memset(out, 0, static_cast<size_t>(rows * row_bytes));\n", ""),
    ("cuda_weights.cc", DEVICE, "Pack*", "the first rows of a part again",
     "ConvertRow(part, row + r,", "ConvertRow(part, r,"),
    ("cuda_weights.cc", DEVICE, "Pack*", "a mark of another lane",
     "MarkNow(Lane::kCopies)", "MarkNow(Lane::kTransfer)"),
    ("cuda_weights.cc", DEVICE, "Pack*", "f16 where some are", "std::all_of(", "std::any_of("),
    ("cuda_device.cc", DEVICE, "*", "buffers are not counted", "  *taken_ += counted;\n", ""),
    ("cuda_device.cc", DEVICE, "*", "buffers are counted for ever", "    *taken -= counted;\n", ""),
    ("cuda_device.cc", DEVICE, "*", "pinned memory is counted", "pinned ? 0 : bytes", "bytes"),
    ("cuda_device.cc", DEVICE, "*", "all lanes are one",
     "lanes_[static_cast<int>(lane)]", "lanes_[0]"),
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
]


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


class Build:
    """How the emulated preset compiles and links."""

    def __init__(self, folder):
        self.folder = folder
        self.commands = {pathlib.Path(entry["file"]): entry for entry in
                         json.loads((folder / "compile_commands.json").read_text())}
        self.links = {}

    def compile(self, source, mutated, include, out):
        entry = self.commands[source]
        words = [w for w in shlex.split(entry["command"]) if not w.endswith("ccache")]
        words[words.index("-o") + 1] = str(out)
        words[words.index("-c") + 1] = str(mutated)
        words.insert(1, f"-I{include}")
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


def find(build, mutation, scratch):
    """What found a mutation; None if nothing did."""
    files, program, test_filter, _, text, replacement = mutation
    file, _, unit = files.partition(":")
    source = ROOT / "kernels/cuda" / file
    content = source.read_text()
    if text not in content:
        return None, "the text is not there any more"
    include = scratch / "kernels/cuda"
    include.mkdir(parents=True, exist_ok=True)
    for old in include.iterdir():
        old.unlink()
    (include / file).write_text(content.replace(text, replacement))
    unit = unit or file
    if unit != file:
        (include / unit).write_text((ROOT / "kernels/cuda" / unit).read_text())
    built = build.compile(ROOT / "kernels/cuda" / unit, include / unit, scratch,
                          scratch / "mutated.o")
    if built.returncode != 0:
        return None, built.stderr[-500:]
    linked = build.link(program, scratch / "mutated.o", scratch / "program")
    if linked.returncode != 0:
        return None, linked.stderr[-500:]
    try:
        tested = run([scratch / "program", f"--gtest_filter={test_filter}", "--gtest_fail_fast"],
                     timeout=300)
    except subprocess.TimeoutExpired:
        return "it never ends", ""
    if tested.returncode == 0:
        return None, "every test passed"
    message = re.search(r"^.*(?:race|outside|in flight|uninitialised|misaligned|divergence|"
                        r"deadlock|exits with).*$", tested.stdout, re.M)
    if message:
        return message.group(0)[-150:].strip(), ""
    failed = re.findall(r"^\[  FAILED  \] ([\w/.]+)", tested.stdout, re.M)
    return f"values: {failed[0]}" if failed else "a crash", ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/emulated")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    build = Build(arguments.build.resolve())
    chosen = [m for m in MUTATIONS
              if not arguments.names or any(name in m[0] + " " + m[3] for name in arguments.names)]
    survivors = 0
    with tempfile.TemporaryDirectory() as scratch:
        for mutation in chosen:
            found, why = find(build, mutation, pathlib.Path(scratch))
            survivors += found is None
            print(f"{mutation[0]}: {mutation[3]}: {found or 'SURVIVES: ' + why}", flush=True)
    print(f"{len(chosen)} mutations, {survivors} survive")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
