#include "common/checkpoint/weights.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/checkpoint/families.h"
#include "common/checkpoint/json_fields.h"

namespace baton {
namespace {

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
  void RefuseRest(std::span<const absl::string_view> ignored) {
    for (const auto& [name, tensor] : files_.tensors()) {
      if (taken_.contains(name) || absl::StrContains(name, "rotary_emb.")) continue;
      const auto ends = [&name](absl::string_view end) { return absl::EndsWith(name, end); };
      if (std::ranges::any_of(ignored, ends)) continue;
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

// A checkpoint's tensors by the names of its family.
struct NamedTensors {
  const ModelConfig& config;
  const TensorNames& names;
  TensorTaker& taker;
  std::string base;  // That the file has.

  std::string Name(absl::string_view name, const char* kind) const {
    return absl::StrCat(base, name, kind);
  }
  TensorView Weight(absl::string_view name, std::vector<int64_t> shape, bool wanted = true) const {
    return taker.TakeIf(wanted, Name(name, ".weight"), std::move(shape));
  }
  TensorView Bias(absl::string_view name, int64_t size, bool wanted) const {
    return taker.TakeIf(wanted, Name(name, ".bias"), {size});
  }
  NormWeights Norm(absl::string_view name, bool wanted = true) const {
    const int64_t hidden = config.hidden_size;
    return {.weight = Weight(name, {hidden}, wanted),
            .bias = Bias(name, hidden, wanted && config.norm == NormKind::kLayer)};
  }

  void TakeAttention(const std::string& layer, LayerWeights& w) const;
  void TakeMlp(const std::string& layer, LayerWeights& w) const;
  void TakeExperts(const std::string& layer, LayerWeights& w) const;
  LayerWeights TakeLayer(int32_t layer, NormWeights& norm_before) const;
};

void NamedTensors::TakeAttention(const std::string& layer, LayerWeights& w) const {
  const int64_t hidden = config.hidden_size;
  const int64_t q_dim = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_dim = int64_t{config.num_kv_heads} * config.head_dim;
  if (names.qkv.empty()) {
    w.q_proj = Weight(layer + std::string(names.q), {q_dim, hidden});
    w.k_proj = Weight(layer + std::string(names.k), {kv_dim, hidden});
    w.v_proj = Weight(layer + std::string(names.v), {kv_dim, hidden});
    w.q_bias = Bias(layer + std::string(names.q), q_dim, config.qkv_bias);
    w.k_bias = Bias(layer + std::string(names.k), kv_dim, config.qkv_bias);
    w.v_bias = Bias(layer + std::string(names.v), kv_dim, config.qkv_bias);
  } else {
    const std::string name = layer + std::string(names.qkv);
    const int64_t rows = q_dim + 2 * kv_dim;
    const TensorView weight = Weight(name, {rows, hidden});
    const TensorView bias = Bias(name, rows, config.qkv_bias);
    TensorView* const parts[][2] = {
        {&w.q_proj, &w.q_bias}, {&w.k_proj, &w.k_bias}, {&w.v_proj, &w.v_bias}};
    for (int64_t part = 0; part < 3; ++part) {
      const int64_t first = part == 0 ? 0 : q_dim + (part - 1) * kv_dim;
      const auto part_of = [&](const TensorView& fused) {
        return names.qkv_by_head ? EveryGroup(fused, config.head_dim, part, 3)
                                 : RowsOf(fused, first, part == 0 ? q_dim : kv_dim);
      };
      *parts[part][0] = part_of(weight);
      *parts[part][1] = part_of(bias);
    }
  }
  w.q_norm = Weight(layer + std::string(names.q_norm), {config.head_dim}, config.qk_norm);
  w.k_norm = Weight(layer + std::string(names.k_norm), {config.head_dim}, config.qk_norm);
  w.o_proj = Weight(layer + std::string(names.o), {hidden, q_dim});
  w.o_bias = Bias(layer + std::string(names.o), hidden, config.o_bias);
}

void NamedTensors::TakeMlp(const std::string& layer, LayerWeights& w) const {
  const std::string gate = absl::StrCat(layer, names.gate), up = absl::StrCat(layer, names.up);
  const std::string down = absl::StrCat(layer, names.down);
  const int64_t hidden = config.hidden_size, ffn = config.ffn_size;
  if (names.gate_up.empty()) {
    w.gate_proj = Weight(gate, {ffn, hidden}, config.gated_mlp);
    w.up_proj = Weight(up, {ffn, hidden});
  } else {
    const TensorView both = Weight(absl::StrCat(layer, names.gate_up), {2 * ffn, hidden});
    w.gate_proj = RowsOf(both, 0, ffn);
    w.up_proj = RowsOf(both, ffn, ffn);
  }
  w.down_proj = Weight(down, {hidden, ffn});
  w.gate_bias = Bias(gate, ffn, config.gated_mlp && config.mlp_bias);
  w.up_bias = Bias(up, ffn, config.mlp_bias);
  w.down_bias = Bias(down, hidden, config.mlp_bias);
}

void NamedTensors::TakeExperts(const std::string& layer, LayerWeights& w) const {
  const ExpertConfig& experts = config.experts;
  const int64_t hidden = config.hidden_size;
  const auto take = [&](const std::string& name, int64_t ffn) {
    return ExpertWeights{
        .gate_proj = Weight(absl::StrCat(name, names.expert_gate), {ffn, hidden}),
        .up_proj = Weight(absl::StrCat(name, names.expert_up), {ffn, hidden}),
        .down_proj = Weight(absl::StrCat(name, names.expert_down), {hidden, ffn})};
  };
  w.router = Weight(absl::StrCat(layer, names.router), {experts.count, hidden});
  for (int32_t e = 0; e < experts.count; ++e) {
    w.experts.push_back(take(absl::StrCat(layer, names.experts, e, "."), experts.ffn_size));
  }
  if (experts.shared_ffn_size == 0) return;
  w.shared_gate = Weight(absl::StrCat(layer, names.shared_gate), {1, hidden});
  ExpertWeights shared = take(absl::StrCat(layer, names.shared_expert), experts.shared_ffn_size);
  w.gate_proj = std::move(shared.gate_proj);
  w.up_proj = std::move(shared.up_proj);
  w.down_proj = std::move(shared.down_proj);
}

// `norm_before` is, with post_norm, that behind the layer before, and becomes this one's.
LayerWeights NamedTensors::TakeLayer(int32_t number, NormWeights& norm_before) const {
  const std::string layer = absl::StrCat(names.layer, number, ".");
  const int64_t hidden = config.hidden_size;
  LayerWeights w;
  NormWeights first = Norm(layer + std::string(names.attention_norm));
  NormWeights second = Norm(layer + std::string(names.ffn_norm));
  if (config.post_norm) {
    w.attention_norm = std::exchange(norm_before, std::move(second));
    w.ffn_norm = std::move(first);
  } else {
    w.attention_norm = std::move(first);
    w.ffn_norm = std::move(second);
  }
  TakeAttention(layer, w);
  w.attention_output_norm =
      Weight(absl::StrCat(layer, names.attention_output_norm), {hidden}, config.output_norms);
  w.ffn_output_norm =
      Weight(absl::StrCat(layer, names.ffn_output_norm), {hidden}, config.output_norms);
  if (number < std::ssize(config.experts.layers) && config.experts.layers[number]) {
    TakeExperts(layer, w);
  } else {
    TakeMlp(layer, w);
  }
  return w;
}

bool SameContents(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.bytes.size() == b.bytes.size() &&
         std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
}

// transformers ties whichever of the two a tied checkpoint has, and does not tie two that differ.
void TakeEmbeddings(const NamedTensors& tensors, ModelWeights& weights) {
  const ModelConfig& config = tensors.config;
  TensorTaker& taker = tensors.taker;
  const std::vector<int64_t> shape = {config.vocab_size, config.embedding_dim};
  const std::string embedding = tensors.Name(tensors.names.embedding, ".weight");
  std::string lm_head = absl::StrCat(tensors.names.lm_head, ".weight");
  if (!tensors.names.other_lm_head.empty() && !taker.Has(lm_head)) {
    const std::string other = absl::StrCat(tensors.names.other_lm_head, ".weight");
    if (taker.Has(other)) lm_head = other;
  }
  const bool has_head = taker.Has(lm_head);
  if (!config.tied_embeddings || (has_head && taker.Has(embedding))) {
    weights.embedding = taker.Take(embedding, shape);
    weights.lm_head = taker.Take(lm_head, shape);
    if (taker.status().ok() && SameContents(weights.embedding, weights.lm_head)) {
      weights.lm_head = weights.embedding;
    }
    return;
  }
  weights.embedding = taker.Take(has_head ? lm_head : embedding, shape);
  weights.lm_head = weights.embedding;
}

// What lies between tokens and the first layer, and between the last and the output layer.
void TakeEnds(const NamedTensors& tensors, ModelWeights& weights) {
  const ModelConfig& config = tensors.config;
  const TensorNames& names = tensors.names;
  const int64_t hidden = config.hidden_size, dim = config.embedding_dim;
  weights.positions = tensors.Weight(
      names.positions, {int64_t{config.position_offset} + config.max_position_embeddings, hidden},
      config.learned_positions);
  weights.embedding_in = tensors.Weight(names.embedding_in, {hidden, dim}, dim != hidden);
  weights.embedding_out = tensors.Weight(names.embedding_out, {dim, hidden}, dim != hidden);
  weights.embedding_norm = tensors.Norm(names.embedding_norm, config.embedding_norm);
  if (!config.post_norm) weights.final_norm = tensors.Norm(names.final_norm, config.final_norm);
}

// A file saved without the output layer has no base before its names.
std::string BaseOf(const TensorNames& names, const TensorTaker& taker) {
  const std::string embedding = absl::StrCat(names.embedding, ".weight");
  const bool bare = taker.Has(embedding) && !taker.Has(absl::StrCat(names.base, embedding));
  return bare ? "" : std::string(names.base);
}

}  // namespace

absl::StatusOr<ModelWeights> MapWeights(const ModelConfig& config, const SafetensorsFiles& files) {
  TensorTaker taker(files);
  const TensorNames& names = NamesOf(config.architecture);
  const NamedTensors tensors{config, names, taker, BaseOf(names, taker)};
  ModelWeights weights;
  TakeEmbeddings(tensors, weights);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    weights.layers.push_back(tensors.TakeLayer(layer, weights.final_norm));
    RETURN_IF_ERROR(taker.status());
  }
  TakeEnds(tensors, weights);
  taker.RefuseRest(names.ignored);
  RETURN_IF_ERROR(taker.status());
  return weights;
}

}  // namespace baton
