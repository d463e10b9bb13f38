#include "kernels/cpu/check_args.h"

#include <cmath>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"

namespace baton {
namespace {

absl::Status Require(bool ok, absl::string_view field, int64_t value, absl::string_view allowed) {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ": must be ", allowed));
}

absl::Status RequirePointer(const void* p, absl::string_view field) {
  if (p != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " = null: must point to data"));
}

absl::Status RequireAtLeast(int64_t value, int64_t least, absl::string_view field) {
  return Require(value >= least, field, value, absl::StrCat("at least ", least));
}

absl::Status CheckPlane(const CachePlane& cache, absl::string_view field) {
  RETURN_IF_ERROR(RequirePointer(cache.data, absl::StrCat(field, ".data")));
  RETURN_IF_ERROR(RequireAtLeast(cache.num_blocks, 1, absl::StrCat(field, ".num_blocks")));
  RETURN_IF_ERROR(RequireAtLeast(cache.num_heads, 1, absl::StrCat(field, ".num_heads")));
  RETURN_IF_ERROR(RequireAtLeast(cache.block_size, 1, absl::StrCat(field, ".block_size")));
  RETURN_IF_ERROR(RequireAtLeast(cache.dim, 1, absl::StrCat(field, ".dim")));
  const int64_t block = int64_t{cache.num_heads} * cache.block_size * cache.dim;
  return RequireAtLeast(cache.block_stride, block, absl::StrCat(field, ".block_stride"));
}

absl::Status CheckSameBlocks(const CachePlane& k, const CachePlane& v) {
  RETURN_IF_ERROR(CheckPlane(k, "k_cache"));
  RETURN_IF_ERROR(CheckPlane(v, "v_cache"));
  RETURN_IF_ERROR(
      Require(v.dtype == k.dtype, "v_cache.dtype", static_cast<int>(v.dtype), "that of k_cache"));
  RETURN_IF_ERROR(
      Require(v.num_blocks == k.num_blocks, "v_cache.num_blocks", v.num_blocks, "that of k_cache"));
  RETURN_IF_ERROR(
      Require(v.num_heads == k.num_heads, "v_cache.num_heads", v.num_heads, "that of k_cache"));
  return Require(v.block_size == k.block_size, "v_cache.block_size", v.block_size,
                 "that of k_cache");
}

// The pairs' indexes lie in the planes and no destination is written twice.
absl::Status CheckPairs(const BlockPair* pairs, int64_t num_pairs, int64_t num_sources,
                        int64_t num_destinations) {
  absl::flat_hash_set<int64_t> destinations;
  for (int64_t i = 0; i < num_pairs; ++i) {
    const std::string field = absl::StrCat("pairs[", i, "]");
    RETURN_IF_ERROR(Require(pairs[i].source >= 0 && pairs[i].source < num_sources,
                            field + ".source", pairs[i].source,
                            absl::StrCat("in [0, ", num_sources, ")")));
    RETURN_IF_ERROR(Require(pairs[i].destination >= 0 && pairs[i].destination < num_destinations,
                            field + ".destination", pairs[i].destination,
                            absl::StrCat("in [0, ", num_destinations, ")")));
    RETURN_IF_ERROR(Require(destinations.insert(pairs[i].destination).second,
                            field + ".destination", pairs[i].destination,
                            "a destination only once"));
  }
  return absl::OkStatus();
}

absl::Status CheckSequence(const VarlenAttentionArgs& args, int64_t s) {
  const int64_t queries = int64_t{args.cu_seqlens_q[s + 1]} - args.cu_seqlens_q[s];
  RETURN_IF_ERROR(Require(queries >= 0, absl::StrCat("cu_seqlens_q[", s + 1, "]"),
                          args.cu_seqlens_q[s + 1], "not less than the entry before"));
  const int64_t keys = args.seq_lens[s];
  const std::string seq_len = absl::StrCat("seq_lens[", s, "]");
  RETURN_IF_ERROR(RequireAtLeast(keys, queries, seq_len));
  const int64_t size = args.k_cache.block_size;
  RETURN_IF_ERROR(
      Require(keys <= args.max_blocks * size, seq_len, keys,
              absl::StrCat("at most max_blocks * block_size = ", args.max_blocks * size)));
  for (int64_t i = 0; queries > 0 && i * size < keys; ++i) {
    const int64_t block = args.block_table[s * args.max_blocks + i];
    RETURN_IF_ERROR(Require(block >= 0 && block < args.k_cache.num_blocks,
                            absl::StrCat("block_table[", s, "][", i, "]"), block,
                            absl::StrCat("in [0, ", args.k_cache.num_blocks, ")")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckArgs(const ReshapeAndCacheArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(CheckSameBlocks(args.k_cache, args.v_cache));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.key, "key"));
  RETURN_IF_ERROR(RequirePointer(args.value, "value"));
  RETURN_IF_ERROR(RequirePointer(args.slot_mapping, "slot_mapping"));
  const int64_t heads = args.k_cache.num_heads;
  RETURN_IF_ERROR(RequireAtLeast(args.key_stride, heads * args.k_cache.dim, "key_stride"));
  RETURN_IF_ERROR(RequireAtLeast(args.value_stride, heads * args.v_cache.dim, "value_stride"));
  const int64_t num_slots = args.k_cache.num_blocks * args.k_cache.block_size;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    RETURN_IF_ERROR(Require(args.slot_mapping[t] < num_slots, absl::StrCat("slot_mapping[", t, "]"),
                            args.slot_mapping[t], absl::StrCat("less than ", num_slots)));
  }
  return absl::OkStatus();
}

absl::Status CheckArgs(const CopyBlocksArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_planes, 0, "num_planes"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_pairs, 0, "num_pairs"));
  if (args.num_planes == 0 || args.num_pairs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.planes, "planes"));
  RETURN_IF_ERROR(RequirePointer(args.pairs, "pairs"));
  for (int64_t p = 0; p < args.num_planes; ++p) {
    RETURN_IF_ERROR(CheckPlane(args.planes[p], absl::StrCat("planes[", p, "]")));
    const int64_t num_blocks = args.planes[p].num_blocks;
    RETURN_IF_ERROR(CheckPairs(args.pairs, args.num_pairs, num_blocks, num_blocks));
  }
  absl::flat_hash_set<int64_t> sources;
  for (int64_t i = 0; i < args.num_pairs; ++i) sources.insert(args.pairs[i].source);
  for (int64_t i = 0; i < args.num_pairs; ++i) {
    RETURN_IF_ERROR(Require(!sources.contains(args.pairs[i].destination),
                            absl::StrCat("pairs[", i, "].destination"), args.pairs[i].destination,
                            "a block that is not also a source"));
  }
  return absl::OkStatus();
}

absl::Status CheckArgs(const SwapBlocksArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_planes, 0, "num_planes"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_pairs, 0, "num_pairs"));
  if (args.num_planes == 0 || args.num_pairs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.sources, "sources"));
  RETURN_IF_ERROR(RequirePointer(args.destinations, "destinations"));
  RETURN_IF_ERROR(RequirePointer(args.pairs, "pairs"));
  for (int64_t p = 0; p < args.num_planes; ++p) {
    const CachePlane& from = args.sources[p];
    const CachePlane& to = args.destinations[p];
    const std::string field = absl::StrCat("destinations[", p, "]");
    RETURN_IF_ERROR(CheckPlane(from, absl::StrCat("sources[", p, "]")));
    RETURN_IF_ERROR(CheckPlane(to, field));
    const bool same = from.dtype == to.dtype && from.num_heads == to.num_heads &&
                      from.block_size == to.block_size && from.dim == to.dim;
    RETURN_IF_ERROR(Require(same, field + ".dim", to.dim,
                            "of the same dtype, num_heads, block_size and dim as the source"));
    RETURN_IF_ERROR(Require(from.data != to.data, field + ".data", 0,
                            "another cache than the source; use CopyBlocks within one"));
    RETURN_IF_ERROR(CheckPairs(args.pairs, args.num_pairs, from.num_blocks, to.num_blocks));
  }
  return absl::OkStatus();
}

absl::Status CheckArgs(const VarlenAttentionArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_seqs, 0, "num_seqs"));
  if (args.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckSameBlocks(args.k_cache, args.v_cache));
  RETURN_IF_ERROR(RequireAtLeast(args.num_heads, 1, "num_heads"));
  RETURN_IF_ERROR(
      Require(args.num_heads % args.k_cache.num_heads == 0, "num_heads", args.num_heads,
              absl::StrCat("a multiple of k_cache.num_heads = ", args.k_cache.num_heads)));
  RETURN_IF_ERROR(RequirePointer(args.cu_seqlens_q, "cu_seqlens_q"));
  RETURN_IF_ERROR(RequirePointer(args.seq_lens, "seq_lens"));
  RETURN_IF_ERROR(RequirePointer(args.block_table, "block_table"));
  RETURN_IF_ERROR(RequireAtLeast(args.max_blocks, 0, "max_blocks"));
  RETURN_IF_ERROR(Require(args.cu_seqlens_q[0] == 0, "cu_seqlens_q[0]", args.cu_seqlens_q[0], "0"));
  for (int64_t s = 0; s < args.num_seqs; ++s) RETURN_IF_ERROR(CheckSequence(args, s));
  if (args.cu_seqlens_q[args.num_seqs] == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.q, "q"));
  RETURN_IF_ERROR(RequirePointer(args.out, "out"));
  const int64_t heads = args.num_heads;
  RETURN_IF_ERROR(RequireAtLeast(args.q_stride, heads * args.k_cache.dim, "q_stride"));
  RETURN_IF_ERROR(RequireAtLeast(args.out_stride, heads * args.v_cache.dim, "out_stride"));
  if (std::isfinite(args.scale) && args.scale > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("scale = ", args.scale, ": must be finite and greater than 0"));
}

absl::Status CheckArgs(const RmsNormArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireAtLeast(args.rows_per_token, 1, "rows_per_token"));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.x, "x"));
  RETURN_IF_ERROR(RequirePointer(args.weight, "weight"));
  RETURN_IF_ERROR(RequirePointer(args.out, "out"));
  const int64_t row = args.rows_per_token * args.dim;
  RETURN_IF_ERROR(RequireAtLeast(args.x_stride, row, "x_stride"));
  RETURN_IF_ERROR(RequireAtLeast(args.out_stride, row, "out_stride"));
  return Require(args.residual == nullptr || args.rows_per_token == 1, "rows_per_token",
                 args.rows_per_token, "1 with a residual");
}

absl::Status CheckArgs(const RopeArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireAtLeast(args.num_heads, 1, "num_heads"));
  RETURN_IF_ERROR(RequireAtLeast(args.head_dim, 1, "head_dim"));
  RETURN_IF_ERROR(Require(
      args.rotary_dim >= 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= args.head_dim,
      "rotary_dim", args.rotary_dim, absl::StrCat("even and at most head_dim = ", args.head_dim)));
  if (args.num_tokens == 0 || args.rotary_dim == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.x, "x"));
  RETURN_IF_ERROR(RequirePointer(args.cos, "cos"));
  RETURN_IF_ERROR(RequirePointer(args.sin, "sin"));
  return RequireAtLeast(args.x_stride, args.num_heads * args.head_dim, "x_stride");
}

absl::Status CheckArgs(const ActivationAndMulArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  RETURN_IF_ERROR(RequireAtLeast(args.dim, 1, "dim"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.gate_up, "gate_up"));
  return RequirePointer(args.out, "out");
}

absl::Status CheckArgs(const EmbeddingArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_tokens, 0, "num_tokens"));
  if (args.num_tokens == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.table, "table"));
  RETURN_IF_ERROR(RequirePointer(args.tokens, "tokens"));
  RETURN_IF_ERROR(RequirePointer(args.out, "out"));
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    RETURN_IF_ERROR(Require(args.tokens[t] >= 0 && args.tokens[t] < args.table->n(),
                            absl::StrCat("tokens[", t, "]"), args.tokens[t],
                            absl::StrCat("in [0, ", args.table->n(), ")")));
  }
  return absl::OkStatus();
}

absl::Status CheckArgs(const GemmArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.m, 0, "m"));
  RETURN_IF_ERROR(RequirePointer(args.weights, "weights"));
  RETURN_IF_ERROR(RequirePointer(args.weights->data(), "weights.data"));
  if (args.m == 0) return absl::OkStatus();
  RETURN_IF_ERROR(RequirePointer(args.a, "a"));
  RETURN_IF_ERROR(RequirePointer(args.out, "out"));
  RETURN_IF_ERROR(RequireAtLeast(args.a_stride, args.weights->k(), "a_stride"));
  return RequireAtLeast(args.out_stride, args.weights->n(), "out_stride");
}

absl::Status CheckArgs(const PackWeightsArgs& args) {
  RETURN_IF_ERROR(RequireAtLeast(args.num_parts, 1, "num_parts"));
  RETURN_IF_ERROR(RequireAtLeast(args.k, 1, "k"));
  RETURN_IF_ERROR(RequirePointer(args.parts, "parts"));
  for (int64_t i = 0; i < args.num_parts; ++i) {
    const std::string field = absl::StrCat("parts[", i, "]");
    RETURN_IF_ERROR(RequirePointer(args.parts[i].data, field + ".data"));
    RETURN_IF_ERROR(RequireAtLeast(args.parts[i].num_rows, 1, field + ".num_rows"));
  }
  return absl::OkStatus();
}

}  // namespace baton
