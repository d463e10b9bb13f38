#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "common/base/status.h"
#include "kernels/cpu/check_contents.h"
#include "kernels/cpu/require_f32.h"

namespace baton {
namespace {

absl::Status CheckPairs(const CopyBlocksArgs& args, int64_t num_blocks) {
  absl::flat_hash_set<int64_t> sources, destinations;
  for (int64_t i = 0; i < args.num_pairs; ++i) sources.insert(args.pairs[i].source);
  for (int64_t i = 0; i < args.num_pairs; ++i) {
    const BlockPair& pair = args.pairs[i];
    const std::string field = absl::StrCat("pairs[", i, "]");
    RETURN_IF_ERROR(CheckRange(pair.source, 1, num_blocks, field + ".source"));
    RETURN_IF_ERROR(CheckRange(pair.destination, 1, num_blocks, field + ".destination"));
    RETURN_IF_ERROR(Require(destinations.insert(pair.destination).second, field + ".destination",
                            pair.destination, "a destination only once"));
    RETURN_IF_ERROR(Require(!sources.contains(pair.destination), field + ".destination",
                            pair.destination, "a block that is not also a source"));
  }
  return absl::OkStatus();
}

absl::Status CheckRuns(const SwapBlocksArgs& args, int64_t num_sources, int64_t num_destinations) {
  absl::flat_hash_set<int64_t> destinations;
  for (int64_t i = 0; i < args.num_runs; ++i) {
    const BlockRun& run = args.runs[i];
    const std::string field = absl::StrCat("runs[", i, "]");
    RETURN_IF_ERROR(
        RequireIn(run.count, 0, std::min(num_sources, num_destinations), field + ".count"));
    RETURN_IF_ERROR(CheckRange(run.source, run.count, num_sources, field + ".source"));
    RETURN_IF_ERROR(
        CheckRange(run.destination, run.count, num_destinations, field + ".destination"));
    for (int64_t b = 0; b < run.count; ++b) {
      RETURN_IF_ERROR(Require(destinations.insert(run.destination + b).second,
                              field + ".destination", run.destination + b,
                              "a destination only once"));
    }
  }
  return absl::OkStatus();
}

int64_t FewestBlocks(const CachePlane* planes, int64_t num_planes) {
  int64_t blocks = INT32_MAX;
  for (int64_t p = 0; p < num_planes; ++p) blocks = std::min(blocks, planes[p].num_blocks);
  return blocks;
}

absl::Status CheckAllScales(const CachePlane* planes, int64_t num_planes, absl::string_view name) {
  for (int64_t p = 0; p < num_planes; ++p) {
    if (planes[p].num_scales == 0) continue;
    RETURN_IF_ERROR(CheckScales(planes[p], absl::StrCat(name, "[", p, "]")));
  }
  return absl::OkStatus();
}

// Of a gather or scatter.
template <typename Args>
absl::Status CheckStagedBlocks(const Args& args, bool repeats) {
  if (args.num_planes == 0 || args.num_blocks == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckAllScales(args.planes, args.num_planes, "planes"));
  const int64_t limit = FewestBlocks(args.planes, args.num_planes);
  absl::flat_hash_set<int32_t> seen;
  for (int64_t i = 0; i < args.num_blocks; ++i) {
    const std::string field = absl::StrCat("blocks[", i, "]");
    RETURN_IF_ERROR(CheckRange(args.blocks[i], 1, limit, field));
    RETURN_IF_ERROR(Require(repeats || seen.insert(args.blocks[i]).second, field, args.blocks[i],
                            "a destination only once"));
  }
  return absl::OkStatus();
}

// The tokens of sequence s lie in blocks of the cache.
absl::Status CheckGathered(const UpdateKvCacheArgs& args, int64_t s) {
  const CachePlane& plane = args.append.k_cache;
  const int64_t length = int64_t{args.cu_seqlens_k[s + 1]} - args.cu_seqlens_k[s];
  const int64_t blocks = args.block_table == nullptr ? 1 : args.max_blocks;
  if (length > blocks * plane.block_size) {
    return Require(false, absl::StrCat("cu_seqlens_k[", s + 1, "]"), args.cu_seqlens_k[s + 1],
                   absl::StrCat("such that sequence ", s, " has at most ",
                                blocks * plane.block_size, " tokens, what its blocks hold"));
  }
  if (args.block_table == nullptr) return absl::OkStatus();
  for (int64_t i = 0; i * plane.block_size < length; ++i) {
    const int64_t block = args.block_table[s * args.max_blocks + i];
    if (block >= 0 && block < plane.num_blocks) continue;
    return Require(false, absl::StrCat("block_table[", s, "][", i, "]"), block,
                   absl::StrCat("in [0, ", plane.num_blocks, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckScales(const CachePlane& cache, absl::string_view field) {
  for (int32_t i = 0; i < cache.num_scales; ++i) {
    if (cache.scales[i] > 0 && std::isfinite(cache.scales[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat(field, ".scales[", i, "] = ", cache.scales[i],
                                                   ": must be finite and greater than 0"));
  }
  return absl::OkStatus();
}

absl::Status CheckContents(const ReshapeAndCacheArgs& args) {
  RETURN_IF_ERROR(RequireF32(args.key, "key"));
  RETURN_IF_ERROR(RequireF32(args.value, "value"));
  RETURN_IF_ERROR(CheckScales(args.k_cache, "k_cache"));
  RETURN_IF_ERROR(CheckScales(args.v_cache, "v_cache"));
  const int64_t num_slots = args.k_cache.num_blocks * args.k_cache.block_size;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    if (args.slot_mapping[t] < num_slots) continue;
    return Require(false, absl::StrCat("slot_mapping[", t, "]"), args.slot_mapping[t],
                   absl::StrCat("less than ", num_slots));
  }
  return absl::OkStatus();
}

absl::Status CheckCumulative(const int32_t* cu, int64_t num_seqs, const char* field) {
  RETURN_IF_ERROR(Require(cu[0] == 0, absl::StrCat(field, "[0]"), cu[0], "0"));
  for (int64_t s = 0; s < num_seqs; ++s) {
    if (cu[s + 1] >= cu[s]) continue;
    return Require(false, absl::StrCat(field, "[", s + 1, "]"), cu[s + 1],
                   "not less than the entry before");
  }
  return absl::OkStatus();
}

absl::Status CheckContents(const UpdateKvCacheArgs& args) {
  RETURN_IF_ERROR(CheckContents(args.append));
  RETURN_IF_ERROR(RequireF32(args.k_out, "k_out"));
  RETURN_IF_ERROR(RequireF32(args.v_out, "v_out"));
  if (args.num_seqs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckCumulative(args.cu_seqlens_k, args.num_seqs, "cu_seqlens_k"));
  for (int64_t s = 0; s < args.num_seqs; ++s) RETURN_IF_ERROR(CheckGathered(args, s));
  if (args.cu_seqlens_k[args.num_seqs] == 0) return absl::OkStatus();
  const CachePlane& k = args.append.k_cache;
  const CachePlane& v = args.append.v_cache;
  RETURN_IF_ERROR(RequirePointer(args.k_out.data, "k_out"));
  RETURN_IF_ERROR(RequirePointer(args.v_out.data, "v_out"));
  RETURN_IF_ERROR(RequireStride(args.k_out_stride, int64_t{k.num_heads} * k.dim, "k_out_stride"));
  return RequireStride(args.v_out_stride, int64_t{v.num_heads} * v.dim, "v_out_stride");
}

absl::Status CheckContents(const CopyBlocksArgs& args) {
  if (args.num_planes == 0 || args.num_pairs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckAllScales(args.planes, args.num_planes, "planes"));
  return CheckPairs(args, FewestBlocks(args.planes, args.num_planes));
}

absl::Status CheckContents(const SwapBlocksArgs& args) {
  if (args.num_planes == 0 || args.num_runs == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckAllScales(args.sources, args.num_planes, "sources"));
  RETURN_IF_ERROR(CheckAllScales(args.destinations, args.num_planes, "destinations"));
  return CheckRuns(args, FewestBlocks(args.sources, args.num_planes),
                   FewestBlocks(args.destinations, args.num_planes));
}

absl::Status CheckContents(const GatherBlocksArgs& args) { return CheckStagedBlocks(args, true); }
absl::Status CheckContents(const ScatterBlocksArgs& args) { return CheckStagedBlocks(args, false); }

}  // namespace baton
