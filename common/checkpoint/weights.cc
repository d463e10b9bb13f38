#include "common/checkpoint/weights.h"

#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/checkpoint/json_fields.h"

namespace baton {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kFinalNorm[] = "model.norm.weight";
constexpr char kLmHead[] = "lm_head.weight";

std::optional<DType> UsableDType(std::string_view stored) {
  if (stored == "F32") return DType::kF32;
  if (stored == "F16") return DType::kF16;
  if (stored == "BF16") return DType::kBF16;
  return std::nullopt;
}

// Takes tensors by name out of the files and remembers the first error and what was taken.
class TensorTaker {
 public:
  explicit TensorTaker(const SafetensorsFiles& files) : files_(files) {}

  bool Has(const std::string& name) const { return files_.tensors().contains(name); }

  TensorView Take(const std::string& name, std::vector<int64_t> shape) {
    taken_.insert(name);
    const auto it = files_.tensors().find(name);
    if (it == files_.tensors().end()) {
      status_.Update(absl::InvalidArgumentError(absl::StrCat(
          "weights: tensor \"", name, "\" is missing; config.json asks for it with shape [",
          absl::StrJoin(shape, ", "), "]")));
      return {};
    }
    const StoredTensor& stored = it->second;
    const std::string where = absl::StrCat(stored.file, ": tensor \"", name, "\": ");
    const std::optional<DType> dtype = UsableDType(stored.dtype);
    if (!dtype.has_value()) {
      status_.Update(absl::UnimplementedError(
          absl::StrCat(where, "dtype ", stored.dtype, " is not supported; F32, F16 and BF16 are")));
      return {};
    }
    if (stored.shape != shape) {
      status_.Update(absl::InvalidArgumentError(
          absl::StrCat(where, "has shape [", absl::StrJoin(stored.shape, ", "),
                       "], but config.json asks for [", absl::StrJoin(shape, ", "), "]")));
      return {};
    }
    return {.dtype = *dtype, .shape = std::move(shape), .bytes = stored.bytes};
  }

  TensorView TakeIf(bool wanted, const std::string& name, std::vector<int64_t> shape) {
    return wanted ? Take(name, std::move(shape)) : TensorView{};
  }

  // Refuses what nobody took, except buffers that are computed rather than read.
  void RefuseRest() {
    for (const auto& [name, tensor] : files_.tensors()) {
      if (taken_.contains(name) || absl::StrContains(name, "rotary_emb.")) continue;
      status_.Update(absl::InvalidArgumentError(
          absl::StrCat(tensor.file, ": tensor ", ShowJson(name, 200),
                       " has no place in the model that config.json describes; leaving it out "
                       "could change the answers")));
    }
  }

  const absl::Status& status() const { return status_; }

 private:
  const SafetensorsFiles& files_;
  std::set<std::string> taken_;
  absl::Status status_;
};

LayerWeights TakeLayer(const ModelConfig& config, int32_t layer, TensorTaker& taker) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const std::string attention = absl::StrCat(prefix, "self_attn.");
  const std::string mlp = absl::StrCat(prefix, "mlp.");
  const int64_t hidden = config.hidden_size;
  const int64_t q_dim = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_dim = int64_t{config.num_kv_heads} * config.head_dim;
  const int64_t ffn = config.ffn_size;
  const bool gate_bias = config.gated_mlp && config.mlp_bias;

  LayerWeights w;
  w.attention_norm = taker.Take(prefix + "input_layernorm.weight", {hidden});
  w.q_proj = taker.Take(attention + "q_proj.weight", {q_dim, hidden});
  w.k_proj = taker.Take(attention + "k_proj.weight", {kv_dim, hidden});
  w.v_proj = taker.Take(attention + "v_proj.weight", {kv_dim, hidden});
  w.q_bias = taker.TakeIf(config.qkv_bias, attention + "q_proj.bias", {q_dim});
  w.k_bias = taker.TakeIf(config.qkv_bias, attention + "k_proj.bias", {kv_dim});
  w.v_bias = taker.TakeIf(config.qkv_bias, attention + "v_proj.bias", {kv_dim});
  w.q_norm = taker.TakeIf(config.qk_norm, attention + "q_norm.weight", {config.head_dim});
  w.k_norm = taker.TakeIf(config.qk_norm, attention + "k_norm.weight", {config.head_dim});
  w.o_proj = taker.Take(attention + "o_proj.weight", {hidden, q_dim});
  w.o_bias = taker.TakeIf(config.o_bias, attention + "o_proj.bias", {hidden});
  w.ffn_norm = taker.Take(prefix + "post_attention_layernorm.weight", {hidden});
  w.gate_proj = taker.TakeIf(config.gated_mlp, mlp + "gate_proj.weight", {ffn, hidden});
  w.up_proj = taker.Take(mlp + "up_proj.weight", {ffn, hidden});
  w.down_proj = taker.Take(mlp + "down_proj.weight", {hidden, ffn});
  w.gate_bias = taker.TakeIf(gate_bias, mlp + "gate_proj.bias", {ffn});
  w.up_bias = taker.TakeIf(config.mlp_bias, mlp + "up_proj.bias", {ffn});
  w.down_bias = taker.TakeIf(config.mlp_bias, mlp + "down_proj.bias", {hidden});
  return w;
}

bool SameContents(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.bytes.size() == b.bytes.size() &&
         std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
}

// transformers ties whichever of the two a tied checkpoint has, and does not tie two that differ.
void TakeEmbeddings(const ModelConfig& config, TensorTaker& taker, ModelWeights& weights) {
  const std::vector<int64_t> shape = {config.vocab_size, config.hidden_size};
  const bool has_head = taker.Has(kLmHead);
  const bool has_embedding = taker.Has(kEmbedding);
  if (!config.tied_embeddings || (has_head && has_embedding)) {
    weights.embedding = taker.Take(kEmbedding, shape);
    weights.lm_head = taker.Take(kLmHead, shape);
    if (taker.status().ok() && SameContents(weights.embedding, weights.lm_head)) {
      weights.lm_head = weights.embedding;
    }
    return;
  }
  weights.embedding = taker.Take(has_head ? kLmHead : kEmbedding, shape);
  weights.lm_head = weights.embedding;
}

}  // namespace

absl::StatusOr<ModelWeights> MapWeights(const ModelConfig& config, const SafetensorsFiles& files) {
  TensorTaker taker(files);
  ModelWeights weights;
  TakeEmbeddings(config, taker, weights);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    weights.layers.push_back(TakeLayer(config, layer, taker));
    RETURN_IF_ERROR(taker.status());
  }
  weights.final_norm = taker.Take(kFinalNorm, {config.hidden_size});
  taker.RefuseRest();
  RETURN_IF_ERROR(taker.status());
  return weights;
}

}  // namespace baton
