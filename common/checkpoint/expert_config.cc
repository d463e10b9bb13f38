#include "common/checkpoint/expert_config.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr int64_t kMaxExperts = 1024;  // As in kernels/api/moe_args.h.
constexpr int64_t kMaxExpertFfn = 1 << 20;
constexpr int64_t kMostSteps = 1 << 12;

// The layers that keep an MLP.
std::vector<bool> ReadMlpLayers(JsonFields& fields, const ModelConfig& config) {
  std::vector<bool> plain(config.num_layers, false);
  const json* layers = fields.Find("mlp_only_layers");
  if (layers == nullptr) return plain;
  if (!layers->is_array()) fields.Refuse("mlp_only_layers", *layers, "a list of layers is needed");
  for (const json& item : *layers) {
    const int64_t layer = item.is_number_integer() ? item.get<int64_t>() : -1;
    if (layer >= 0 && layer < config.num_layers) {
      plain[layer] = true;
      continue;
    }
    fields.Refuse("mlp_only_layers", item,
                  absl::StrCat("layers from 0 to ", config.num_layers - 1, " are allowed"));
  }
  return plain;
}

}  // namespace

void ReadExperts(JsonFields& fields, const Family& family, ModelConfig& config) {
  const ExpertDefaults& defaults = family.experts;
  if (defaults.count == 0) return;
  ExpertConfig& experts = config.experts;
  const auto size = [&](const char* name, int64_t fallback, int64_t min, int64_t max) {
    return static_cast<int32_t>(fields.Int(name, fallback, min, max));
  };
  experts.count = size("num_experts", defaults.count, 1, kMaxExperts);
  experts.top_k = size("num_experts_per_tok", defaults.top_k, 1, experts.count);
  if (experts.top_k > experts.count) {  // By default.
    fields.Refuse("num_experts_per_tok", experts.top_k,
                  absl::StrCat("at most num_experts = ", experts.count, " is allowed"));
  }
  experts.ffn_size = defaults.ffn_size == 0
                         ? config.ffn_size
                         : size("moe_intermediate_size", defaults.ffn_size, 1, kMaxExpertFfn);
  if (defaults.shared_ffn_size > 0) {
    experts.shared_ffn_size =
        size("shared_expert_intermediate_size", defaults.shared_ffn_size, 1, kMaxExpertFfn);
  }
  experts.renormalize =
      defaults.always_renormalize || fields.Bool("norm_topk_prob", false);
  experts.layers.assign(config.num_layers, true);
  if (!defaults.sparse_layers) return;
  const int64_t step = fields.Int("decoder_sparse_step", 1, 1, kMostSteps);
  const std::vector<bool> plain = ReadMlpLayers(fields, config);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    experts.layers[layer] = !plain[layer] && (layer + 1) % step == 0;
  }
  if (std::ranges::count(experts.layers, true) == 0) experts = {};
}

}  // namespace baton
