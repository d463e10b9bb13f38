#include "common/model/packed_model.h"

#include <initializer_list>
#include <utility>

#include "common/base/status.h"

namespace baton {
namespace {

std::vector<float> ToFloats(const TensorView& tensor) {
  std::vector<float> out(tensor.present() ? tensor.NumElements() : 0);
  if (tensor.present()) ConvertToF32(tensor, 0, out);
  return out;
}

absl::StatusOr<PackedMatrix> Pack(std::initializer_list<const TensorView*> parts,
                                  Kernels& kernels) {
  std::vector<WeightRows> rows;
  for (const TensorView* part : parts) {
    rows.push_back({part->bytes.data(), part->dtype, part->shape[0]});
  }
  return kernels.PackWeights({.parts = rows.data(),
                              .num_parts = static_cast<int64_t>(rows.size()),
                              .k = (*parts.begin())->shape[1]});
}

// Biases of the parts one after the other; empty when none has one.
std::vector<float> Concatenate(std::initializer_list<const TensorView*> parts) {
  std::vector<float> out;
  for (const TensorView* part : parts) {
    const std::vector<float> bias = ToFloats(*part);
    out.insert(out.end(), bias.begin(), bias.end());
  }
  return out;
}

absl::StatusOr<PackedLayer> PackLayer(const LayerWeights& w, Kernels& kernels) {
  PackedLayer layer;
  layer.attention_norm = ToFloats(w.attention_norm);
  ASSIGN_OR_RETURN(layer.qkv.weights, Pack({&w.q_proj, &w.k_proj, &w.v_proj}, kernels));
  layer.qkv.bias = Concatenate({&w.q_bias, &w.k_bias, &w.v_bias});
  layer.q_norm = ToFloats(w.q_norm);
  layer.k_norm = ToFloats(w.k_norm);
  ASSIGN_OR_RETURN(layer.o.weights, Pack({&w.o_proj}, kernels));
  layer.o.bias = ToFloats(w.o_bias);
  layer.ffn_norm = ToFloats(w.ffn_norm);
  ASSIGN_OR_RETURN(layer.gate_up.weights, Pack({&w.gate_proj, &w.up_proj}, kernels));
  layer.gate_up.bias = Concatenate({&w.gate_bias, &w.up_bias});
  ASSIGN_OR_RETURN(layer.down.weights, Pack({&w.down_proj}, kernels));
  layer.down.bias = ToFloats(w.down_bias);
  return layer;
}

}  // namespace

absl::StatusOr<PackedModel> PackModel(const ModelConfig& config, const ModelWeights& weights,
                                      Kernels& kernels) {
  PackedModel model;
  ASSIGN_OR_RETURN(model.embedding, Pack({&weights.embedding}, kernels));
  if (!config.tied_embeddings) {
    ASSIGN_OR_RETURN(model.lm_head, Pack({&weights.lm_head}, kernels));
  }
  model.final_norm = ToFloats(weights.final_norm);
  for (const LayerWeights& layer : weights.layers) {
    ASSIGN_OR_RETURN(PackedLayer packed, PackLayer(layer, kernels));
    model.layers.push_back(std::move(packed));
  }
  return model;
}

}  // namespace baton
