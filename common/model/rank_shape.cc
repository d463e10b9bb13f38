#include "common/model/rank_shape.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton {
namespace {

// Of which each cuts the tree of a sum at whole branches.
constexpr int kSizes[] = {1, 2, 4, 8};

int32_t SegmentsOfO(const ModelConfig& config) {
  return Segments(int64_t{config.num_heads} * config.head_dim, config.num_heads);
}

// Of the product that leads out of an MLP of so many elements; of none 8, which suits everybody.
int32_t SegmentsOfDown(int32_t ffn_size) { return Segments(ffn_size, ffn_size); }

// 0 where every layer has experts instead.
int32_t PlainFfnSize(const ModelConfig& config) {
  const std::vector<bool>& layers = config.experts.layers;
  const bool plain = layers.empty() || std::ranges::count(layers, false) > 0;
  return plain ? config.ffn_size : 0;
}

int32_t IdsEach(const ModelConfig& config, int size) {
  return (config.vocab_size - 1) / size + 1;
}

// Why a group of that size cannot hold the model; empty if it can.
std::string Obstacle(const ModelConfig& config, int size) {
  if (config.num_heads % size != 0) {
    return absl::StrCat("num_attention_heads = ", config.num_heads, " is no multiple of it");
  }
  if (config.num_kv_heads % size != 0 && size % config.num_kv_heads != 0) {
    return absl::StrCat("num_key_value_heads = ", config.num_kv_heads,
                        " is neither a multiple nor a divisor of it");
  }
  if (SegmentsOfO(config) % size != 0) {
    return absl::StrCat("num_attention_heads x head_dim = ", config.num_heads, " x ",
                        config.head_dim, " are no ", size, " parts of a multiple of 32");
  }
  const struct {
    const char* name;
    int32_t ffn_size;
  } products[] = {{"intermediate_size", PlainFfnSize(config)},
                  {"intermediate_size of an expert", config.experts.ffn_size},
                  {"shared_expert_intermediate_size", config.experts.shared_ffn_size}};
  for (const auto& product : products) {
    if (SegmentsOfDown(product.ffn_size) % size == 0) continue;
    return absl::StrCat(product.name, " = ", product.ffn_size, " is no ", size,
                        " parts of a multiple of 32");
  }
  if (int64_t{IdsEach(config, size)} * (size - 1) >= config.vocab_size) {
    return absl::StrCat("vocab_size = ", config.vocab_size, " leaves ranks without tokens");
  }
  return "";
}

std::string Allowed(const ModelConfig& config) {
  std::string sizes;
  for (const int size : kSizes) {
    if (Obstacle(config, size).empty()) absl::StrAppend(&sizes, sizes.empty() ? "" : ", ", size);
  }
  return sizes;
}

}  // namespace

int32_t Segments(int64_t k, int64_t groups) {
  for (const int32_t segments : {8, 4, 2}) {
    if (k % (32 * segments) == 0 && groups % segments == 0) return segments;
  }
  return 1;
}

absl::Status CheckRanks(const ModelConfig& config, int size) {
  if (!std::ranges::count(kSizes, size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tp = ", size, ": this model allows ", Allowed(config)));
  }
  const std::string obstacle = Obstacle(config, size);
  if (obstacle.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("tp = ", size, ": ", obstacle,
                                                 "; this model allows ", Allowed(config)));
}

RankShape ShardOf(const ModelConfig& config, int rank, int size) {
  BATON_CHECK(rank >= 0 && rank < size);
  const int32_t ids_each = IdsEach(config, size);
  const int32_t first_id = rank * ids_each;
  return {.rank = rank,
          .size = size,
          .num_heads = config.num_heads / size,
          .kv_heads = HeadsOf(rank, size, config.num_kv_heads),
          .ffn_size = PlainFfnSize(config) / size,
          .expert_ffn_size = config.experts.ffn_size / size,
          .shared_ffn_size = config.experts.shared_ffn_size / size,
          .first_token_id = first_id,
          .num_token_ids = std::min(ids_each, config.vocab_size - first_id),
          .ids_each = ids_each,
          .o_segments = SegmentsOfO(config) / size,
          .down_segments = SegmentsOfDown(PlainFfnSize(config)) / size,
          .expert_down_segments = SegmentsOfDown(config.experts.ffn_size) / size,
          .shared_down_segments = SegmentsOfDown(config.experts.shared_ffn_size) / size};
}

}  // namespace baton
