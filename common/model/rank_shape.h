#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/checkpoint/model_config.h"
#include "common/kv_cache/kv_heads.h"

namespace baton {

// What of a model one tensor-parallel rank of a group holds and computes: the rows of q, k, v, gate
// and up, and the columns of o and down, of its heads and of its part of the MLP; its rows of the
// embedding and of the output layer. Ranks hold neighbouring parts in their order.
struct RankShape {
  int32_t rank = 0;
  int32_t size = 1;
  int32_t num_heads = 0;
  HeadRange kv_heads;  // With fewer than ranks, several ranks hold the same one.
  int32_t ffn_size = 0;
  int32_t expert_ffn_size = 0;  // Of each expert: every rank has a part of all of them.
  int32_t shared_ffn_size = 0;
  int32_t first_token_id = 0;
  int32_t num_token_ids = 0;
  int32_t ids_each = 0;  // num_token_ids of all ranks but the last.
  // In how many parts this rank sums the products of o and down.
  int32_t o_segments = 1;
  int32_t down_segments = 1;
  int32_t expert_down_segments = 1;
  int32_t shared_down_segments = 1;
};

// In how many parts a product over k is summed, whatever the number of ranks: 8, 4, 2 or 1, so that
// each is a multiple of 32 and of k / groups. Of the whole model, never of a rank: the parts are a
// tree, and each number of ranks cuts the same one.
int32_t Segments(int64_t k, int64_t groups);

// Whether a group of so many ranks can hold the model. INVALID_ARGUMENT names the field that does
// not divide, its value, and the sizes that this model allows.
absl::Status CheckRanks(const ModelConfig& config, int size);

// CheckRanks holds.
RankShape ShardOf(const ModelConfig& config, int rank, int size);

}  // namespace baton
