#include "common/model/packed_model.h"

#include <initializer_list>
#include <span>
#include <utility>

#include "common/base/status.h"
#include "common/model/device_memory.h"

namespace baton {
namespace {

// What packing needs beside the tensors.
struct Packer {
  Device& device;
  DType compute;
  const ReleaseFn& release;

  absl::StatusOr<PackedMatrix> Pack(std::initializer_list<const TensorView*> parts) const {
    std::vector<WeightRows> rows;
    for (const TensorView* part : parts) {
      rows.push_back({part->bytes.data(), part->dtype, part->shape[0]});
    }
    ASSIGN_OR_RETURN(PackedMatrix packed,
                     device.Pack({.parts = rows.data(),
                                  .num_parts = static_cast<int64_t>(rows.size()),
                                  .k = (*parts.begin())->shape[1],
                                  .compute = compute}));
    for (const TensorView* part : parts) {
      if (release != nullptr) release(part->bytes);
    }
    return packed;
  }

  // The parts one after the other, as f32; empty when none is there.
  absl::StatusOr<Buffer> Copy(std::initializer_list<const TensorView*> parts) const {
    std::vector<float> all;
    for (const TensorView* part : parts) {
      if (!part->present()) continue;
      std::vector<float> values(part->NumElements());
      ConvertToF32(*part, 0, values);
      all.insert(all.end(), values.begin(), values.end());
    }
    if (all.empty()) return Buffer();
    return CopyToDevice(device, std::as_bytes(std::span(all)));
  }
};

absl::StatusOr<PackedLayer> PackLayer(const LayerWeights& w, const Packer& packer) {
  PackedLayer layer;
  ASSIGN_OR_RETURN(layer.attention_norm, packer.Copy({&w.attention_norm}));
  ASSIGN_OR_RETURN(layer.q.weights, packer.Pack({&w.q_proj}));
  ASSIGN_OR_RETURN(layer.q.bias, packer.Copy({&w.q_bias}));
  ASSIGN_OR_RETURN(layer.kv.weights, packer.Pack({&w.k_proj, &w.v_proj}));
  ASSIGN_OR_RETURN(layer.kv.bias, packer.Copy({&w.k_bias, &w.v_bias}));
  ASSIGN_OR_RETURN(layer.q_norm, packer.Copy({&w.q_norm}));
  ASSIGN_OR_RETURN(layer.k_norm, packer.Copy({&w.k_norm}));
  ASSIGN_OR_RETURN(layer.o.weights, packer.Pack({&w.o_proj}));
  ASSIGN_OR_RETURN(layer.o.bias, packer.Copy({&w.o_bias}));
  ASSIGN_OR_RETURN(layer.ffn_norm, packer.Copy({&w.ffn_norm}));
  ASSIGN_OR_RETURN(layer.gate_up.weights, packer.Pack({&w.gate_proj, &w.up_proj}));
  ASSIGN_OR_RETURN(layer.gate_up.bias, packer.Copy({&w.gate_bias, &w.up_bias}));
  ASSIGN_OR_RETURN(layer.down.weights, packer.Pack({&w.down_proj}));
  ASSIGN_OR_RETURN(layer.down.bias, packer.Copy({&w.down_bias}));
  return layer;
}

}  // namespace

int64_t SizeBytes(const PackedModel& model) {
  const auto of = [](const PackedLinear& linear) {
    return linear.weights.size_bytes() + linear.bias.size_bytes();
  };
  int64_t bytes = model.embedding.size_bytes() + model.lm_head.size_bytes() +
                  model.final_norm.size_bytes();
  for (const PackedLayer& layer : model.layers) {
    for (const Buffer* norm : {&layer.attention_norm, &layer.q_norm, &layer.k_norm,
                               &layer.ffn_norm}) {
      bytes += norm->size_bytes();
    }
    for (const PackedLinear* linear : {&layer.q, &layer.kv, &layer.o, &layer.gate_up,
                                       &layer.down}) {
      bytes += of(*linear);
    }
  }
  return bytes;
}

absl::StatusOr<PackedModel> PackModel(const ModelConfig& config, const ModelWeights& weights,
                                      DType compute, Device& device,
                                      const ReleaseFn& release) {
  const Packer packer{device, compute, release};
  PackedModel model;
  ASSIGN_OR_RETURN(model.embedding, packer.Pack({&weights.embedding}));
  if (!config.tied_embeddings) {
    ASSIGN_OR_RETURN(model.lm_head, packer.Pack({&weights.lm_head}));
  }
  ASSIGN_OR_RETURN(model.final_norm, packer.Copy({&weights.final_norm}));
  for (const LayerWeights& layer : weights.layers) {
    ASSIGN_OR_RETURN(PackedLayer packed, PackLayer(layer, packer));
    model.layers.push_back(std::move(packed));
  }
  return model;
}

}  // namespace baton
