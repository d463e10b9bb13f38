#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/attention_args.h"
#include "kernels/api/cache_args.h"
#include "kernels/api/model_args.h"
#include "kernels/api/moe_args.h"
#include "kernels/cpu/packed_panels.h"
#include "kernels/cpu/visible_keys.h"

namespace baton {

struct RowMath;

// The activations of a matrix product with weights, as its kernel reads them. The rows are divided
// into tiles of nearly equal height; tile t holds rows [Begin(t), Begin(t + 1)) in memory for
// `tile_rows`, as [padded k][rows of the tile], floats; with bf16_group = 2 as [padded k / 2][rows
// of the tile][2], bf16; with 32 as [padded k / 32][tile_rows][32], bf16, rows that are none zero.
// Columns from k to padded_k are zero.
struct RowTiles {
  std::byte* data = nullptr;  // 64-byte aligned.
  int64_t m = 0;
  int64_t num_tiles = 0;
  int64_t tile_rows = 0;
  int64_t padded_k = 0;
  int64_t bf16_group = 0;  // Neighbours in k that lie side by side, as bf16; 0: floats.

  int64_t Begin(int64_t tile) const { return tile * m / num_tiles; }
  int64_t row_bytes() const { return padded_k * (bf16_group > 0 ? 2 : 4); }
  std::byte* Tile(int64_t tile) const { return data + tile * tile_rows * row_bytes(); }
  int64_t size_bytes() const { return num_tiles * tile_rows * row_bytes(); }
};

// How a set divides products of one kind.
struct GemmTiling {
  int64_t max_tile_rows = 0;  // Of RowTiles.
  int64_t panels = 0;         // Of weights that several tiles pass by together.
  int64_t bf16_group = 0;     // Of RowTiles; padded_k is a multiple of it.
};

// Rows of a matrix product whose activations stay in the last cache while panels pass by: those of
// a WeightGemmBlock, but for a tile.
inline constexpr int64_t kGemmRows = 512;
// Segments add up in ascending order. Sums wait for their right neighbours in levels, level l for
// one of 2^l segments: it is in use while bit l of the number of sums so far is set. So many are
// added to the sum of segment `index`, which then waits in the next level, unless it is the last.
[[gnu::always_inline]] inline int64_t NumMerges(int64_t index) { return __builtin_ctzll(~index); }

// The levels of 8 segments, for rows with a pair of panels.
inline constexpr int64_t kPendingColumns = 2 * Panels::kRows;
inline constexpr int64_t kPendingLevel = kGemmRows * kPendingColumns;
inline constexpr int64_t kPendingLevels = 3;
inline constexpr int64_t kPendingFloats = kPendingLevels * kPendingLevel;

// Part of a product of activations with weights: tiles [tile_begin, tile_end) of `a` with
// panels [panel_begin, panel_end) of `weights`.
struct WeightGemmBlock {
  const RowTiles* a = nullptr;
  int64_t tile_begin = 0;
  int64_t tile_end = 0;
  const Panels* weights = nullptr;
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
  const float* bias = nullptr;  // [weights->n()], or null.
  float* out = nullptr;         // [a->m, weights->n()], whole.
  int64_t out_stride = 0;
  int32_t segments = 1;      // As of GemmArgs.
  float* pending = nullptr;  // With several segments and tiles, room for kPendingFloats.
};

// Keys of one partial state of attention. Part of the numerics: changing it changes bits.
inline constexpr int64_t kPartialKeys = kPartitionKeys;

// Queries [q_begin, q_end) of one sequence for all query heads of one KV head (indexes into the
// flattened tokens), and the keys [512 * partial_begin, 512 * partial_end). With `states` the
// partial states are left there, AttentionShape::StateFloats() for each, instead of being folded.
struct AttentionTask {
  int64_t sequence = 0;
  int64_t kv_head = 0;
  int64_t q_begin = 0;
  int64_t q_end = 0;
  int64_t partial_begin = 0;
  int64_t partial_end = 0;
  float* states = nullptr;
};

// What the size of an attention task's memory depends on.
struct AttentionShape {
  int64_t num_queries = 0;
  int64_t group = 0;  // Query heads per KV head.
  int64_t k_dim = 0;
  int64_t v_dim = 0;

  int64_t rows() const { return num_queries * group; }
  int64_t v_padded() const { return (v_dim + 15) / 16 * 16; }
  // Of one partial state: for each row the sums of values, the greatest score and the sum of
  // probabilities.
  int64_t StateFloats() const { return rows() * (v_padded() + 2); }
};

// What the generic attention takes: a superset of all attention operators. Sequence s has the keys
// of its cache from row leftpad[s] on, then those of `base.dense`, if any: the last
// cu_seqlens_k[s + 1] - cu_seqlens_k[s] when there is a cache too.
struct GenericAttentionArgs {
  VarlenAttentionArgs base;  // With scores.scale and seq_lens.
  BlockSparsity sparsity;    // Of the last position.
  const int32_t* leftpad = nullptr;
  bool skip_decodes = false;
  AttentionPartials partials;  // Of one query per sequence.

  bool has_cache() const { return base.k_cache.data != nullptr; }
  HeadCounts heads() const {
    return {base.num_heads, has_cache() ? base.k_cache.num_heads : base.dense.num_heads};
  }
  AttentionShape shape(int64_t num_queries) const {
    return {num_queries, heads().group(), has_cache() ? base.k_cache.dim : base.dense.k_dim,
            has_cache() ? base.v_cache.dim : base.dense.v_dim};
  }
};

// One build of the kernels: single-threaded, on checked arguments. Token ranges are [begin, end).
struct KernelSet {
  const char* name;
  GemmTiling tiling;
  // Of bf16 by bf16; other than `tiling` if the set has an instruction for it.
  GemmTiling bf16_tiling;
  const char* bf16_numerics;  // The name of that product's order, which GemmArgs tells.
  // Writes one tile from rows of `a`, [m, k].
  void (*pack_activations)(const float* a, int64_t a_stride, int64_t k, const RowTiles& tiles,
                           int64_t tile);
  void (*weight_gemm)(const WeightGemmBlock& block);
  void (*rms_norm)(const RmsNormArgs& args, int64_t begin, int64_t end);
  void (*layer_norm)(const LayerNormArgs& args, int64_t begin, int64_t end);
  void (*rope)(const RopeArgs& args, int64_t begin, int64_t end);
  void (*activation)(const ActivationArgs& args, int64_t begin, int64_t end);
  void (*activation_and_mul)(const ActivationAndMulArgs& args, int64_t begin, int64_t end);
  void (*softcap)(const SoftcapArgs& args, int64_t begin, int64_t end);
  void (*moe_routing)(const MoeRoutingArgs& args, int64_t begin, int64_t end);
  void (*moe_combine)(const MoeCombineArgs& args, int64_t begin, int64_t end);
  void (*fold_partials)(const FoldPartialsArgs& args, int64_t begin, int64_t end);
  void (*reshape_and_cache)(const ReshapeAndCacheArgs& args, int64_t begin, int64_t end);
  // Of sequences [begin, end): what is in the cache.
  void (*gather_kv)(const UpdateKvCacheArgs& args, int64_t begin, int64_t end);
  int64_t (*attention_scratch)(const AttentionShape& shape);  // In floats.
  void (*attention)(const VarlenAttentionArgs& args, const AttentionTask& task, float* scratch);
  // Folds the states that tasks with `states` have left, and writes the output.
  void (*reduce_attention)(const VarlenAttentionArgs& args, const AttentionTask& task,
                           float* scratch);
  int64_t (*generic_attention_scratch)(const AttentionShape& shape);  // In floats.
  // With `partials` it leaves the task's there, and the next writes the output.
  void (*generic_attention)(const GenericAttentionArgs& args, const AttentionTask& task,
                            float* scratch);
  void (*reduce_generic_attention)(const GenericAttentionArgs& args, const AttentionTask& task,
                                   float* scratch);
  void (*merge_attention_states)(const MergeAttentionStatesArgs& args, int64_t begin, int64_t end);
  const RowMath* (*row_math)();
};

}  // namespace baton
