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

// What packing needs beside the tensors.
struct Packer {
  Kernels& kernels;
  const ReleaseFn& release;

  absl::StatusOr<PackedMatrix> Pack(std::initializer_list<const TensorView*> parts) const {
    std::vector<WeightRows> rows;
    for (const TensorView* part : parts) {
      rows.push_back({part->bytes.data(), part->dtype, part->shape[0]});
    }
    ASSIGN_OR_RETURN(PackedMatrix packed,
                     kernels.PackWeights({.parts = rows.data(),
                                          .num_parts = static_cast<int64_t>(rows.size()),
                                          .k = (*parts.begin())->shape[1]}));
    for (const TensorView* part : parts) {
      if (release != nullptr) release(part->bytes);
    }
    return packed;
  }
};

// Biases of the parts one after the other; empty when none has one.
std::vector<float> Concatenate(std::initializer_list<const TensorView*> parts) {
  std::vector<float> out;
  for (const TensorView* part : parts) {
    const std::vector<float> bias = ToFloats(*part);
    out.insert(out.end(), bias.begin(), bias.end());
  }
  return out;
}

absl::StatusOr<PackedLayer> PackLayer(const LayerWeights& w, const Packer& packer) {
  PackedLayer layer;
  layer.attention_norm = ToFloats(w.attention_norm);
  ASSIGN_OR_RETURN(layer.q.weights, packer.Pack({&w.q_proj}));
  layer.q.bias = ToFloats(w.q_bias);
  ASSIGN_OR_RETURN(layer.kv.weights, packer.Pack({&w.k_proj, &w.v_proj}));
  layer.kv.bias = Concatenate({&w.k_bias, &w.v_bias});
  layer.q_norm = ToFloats(w.q_norm);
  layer.k_norm = ToFloats(w.k_norm);
  ASSIGN_OR_RETURN(layer.o.weights, packer.Pack({&w.o_proj}));
  layer.o.bias = ToFloats(w.o_bias);
  layer.ffn_norm = ToFloats(w.ffn_norm);
  ASSIGN_OR_RETURN(layer.gate_up.weights, packer.Pack({&w.gate_proj, &w.up_proj}));
  layer.gate_up.bias = Concatenate({&w.gate_bias, &w.up_bias});
  ASSIGN_OR_RETURN(layer.down.weights, packer.Pack({&w.down_proj}));
  layer.down.bias = ToFloats(w.down_bias);
  return layer;
}

}  // namespace

absl::StatusOr<PackedModel> PackModel(const ModelConfig& config, const ModelWeights& weights,
                                      Kernels& kernels, const ReleaseFn& release) {
  const Packer packer{kernels, release};
  PackedModel model;
  ASSIGN_OR_RETURN(model.embedding, packer.Pack({&weights.embedding}));
  if (!config.tied_embeddings) {
    ASSIGN_OR_RETURN(model.lm_head, packer.Pack({&weights.lm_head}));
  }
  model.final_norm = ToFloats(weights.final_norm);
  for (const LayerWeights& layer : weights.layers) {
    ASSIGN_OR_RETURN(PackedLayer packed, PackLayer(layer, packer));
    model.layers.push_back(std::move(packed));
  }
  return model;
}

}  // namespace baton
