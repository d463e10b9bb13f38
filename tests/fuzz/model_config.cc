// config.json and generation_config.json: what is accepted is in the ranges of the headers, and
// its rotary frequencies are numbers.
#include "common/checkpoint/model_config.h"

#include <cmath>

#include "common/checkpoint/generation_config.h"
#include "common/checkpoint/rope.h"
#include "tests/fuzz/fuzz_input.h"

namespace baton {
namespace {

constexpr int32_t kMaxPositions = 1 << 20;

void CheckIds(const std::vector<int32_t>& ids) {
  int32_t last = -1;
  for (const int32_t id : ids) {
    BATON_CHECK(id > last);
    last = id;
  }
}

void CheckRope(const ModelConfig& c, int32_t sequence_len) {
  BATON_CHECK(c.rope.theta >= 1 && std::isfinite(c.rope.theta));
  const RopeFrequencies rope = ComputeRopeFrequencies(c.rope, c.rotary_dim, sequence_len);
  BATON_CHECK(rope.inv_freq.size() == static_cast<size_t>(c.rotary_dim) / 2);
  BATON_CHECK(std::isfinite(rope.attention_scaling));
  for (const float f : rope.inv_freq) {
    BATON_CHECK(f >= 0 && std::isfinite(f * static_cast<float>(c.max_model_len)));
  }
}

void CheckConfig(const ModelConfig& c, int32_t sequence_len) {
  BATON_CHECK(c.vocab_size > 0 && c.hidden_size > 0 && c.num_layers > 0 && c.ffn_size > 0);
  BATON_CHECK(c.num_heads > 0 && c.num_kv_heads > 0 && c.num_heads % c.num_kv_heads == 0);
  BATON_CHECK(c.head_dim > 0 && c.head_dim % 2 == 0 && c.rotary_dim == c.head_dim);
  // The bytes of the largest tensors fit in int64.
  const __int128 widest = std::max({__int128{c.vocab_size} * c.hidden_size,
                                    __int128{c.ffn_size} * c.hidden_size,
                                    __int128{c.num_heads} * c.head_dim * c.hidden_size});
  BATON_CHECK(widest * 8 <= INT64_MAX);
  BATON_CHECK(c.norm_eps >= 0 && c.norm_eps <= 1 && std::isfinite(c.attention_scale));
  BATON_CHECK(c.windows.size() == static_cast<size_t>(c.num_layers));
  int32_t window = 0;
  for (const int32_t one : c.windows) {
    BATON_CHECK(one >= 0 && one < c.max_model_len);
    BATON_CHECK(one == 0 || window == 0 || one == window);
    window = std::max(window, one);
  }
  BATON_CHECK(c.max_model_len >= 1 && c.max_model_len <= kMaxPositions);
  CheckIds(c.eos_token_ids);
  CheckRope(c, sequence_len);
}

void CheckGeneration(const GenerationConfig& g) {
  CheckIds(g.eos_token_ids);
  BATON_CHECK(!g.temperature.has_value() || (*g.temperature >= 0 && std::isfinite(*g.temperature)));
  BATON_CHECK(!g.top_k.has_value() || *g.top_k >= 0);
  BATON_CHECK(!g.top_p.has_value() || (*g.top_p > 0 && *g.top_p <= 1));
  BATON_CHECK(!g.min_p.has_value() || (*g.min_p >= 0 && *g.min_p <= 1));
  BATON_CHECK(!g.repetition_penalty.has_value() ||
              (*g.repetition_penalty > 0 && std::isfinite(*g.repetition_penalty)));
}

void Run(FuzzInput in) {
  const uint8_t kind = in.Byte();
  const auto sequence_len = static_cast<int32_t>(in.Number(2)) * 16;
  const std::string text(in.Rest());
  if (kind % 4 == 0) {
    const auto generation = ParseGenerationConfig(text);
    if (!generation.ok()) return CheckRefusal(generation.status());
    return CheckGeneration(*generation);
  }
  const auto config = ParseModelConfig(text);
  if (!config.ok()) {
    return CheckRefusal(config.status(),
                        {absl::StatusCode::kInvalidArgument, absl::StatusCode::kUnimplemented});
  }
  CheckConfig(*config, sequence_len);
  BATON_CHECK(*ParseModelConfig(text) == *config);
}

}  // namespace
}  // namespace baton

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::Run({data, size});
  return 0;
}
