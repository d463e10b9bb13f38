#include "common/model/packed_model.h"

#include <initializer_list>
#include <span>
#include <utility>

#include "common/base/status.h"
#include "common/model/device_memory.h"
#include "common/model/rank_shape.h"

namespace baton {
namespace {

using Tensors = std::initializer_list<const TensorView*>;

struct Range {
  int64_t first = 0;
  int64_t count = 0;
};

// What packing needs beside the tensors.
struct Packer {
  const ModelConfig& config;
  DType compute;
  std::span<Device* const> devices;
  const ReleaseFn& release;
  std::vector<RankShape> shapes;

  // Which rows of a matrix, or columns, a rank has.
  using Part = Range (*)(const ModelConfig& config, const RankShape& shape);

  static Range Heads(const ModelConfig& config, const RankShape& shape) {
    const int64_t count = int64_t{shape.num_heads} * config.head_dim;
    return {shape.rank * count, count};
  }
  static Range KvHeads(const ModelConfig& config, const RankShape& shape) {
    return {int64_t{shape.kv_heads.first} * config.head_dim,
            int64_t{shape.kv_heads.count} * config.head_dim};
  }
  static Range Ffn(const ModelConfig&, const RankShape& shape) {
    return {int64_t{shape.rank} * shape.ffn_size, shape.ffn_size};
  }
  static Range Positions(const ModelConfig& config, const RankShape&) {
    return {config.position_offset, config.max_position_embeddings};
  }
  static Range Hidden(const ModelConfig& config, const RankShape&) {
    return {0, config.hidden_size};
  }
  static Range EmbeddingDim(const ModelConfig& config, const RankShape&) {
    return {0, config.embedding_dim};
  }
  static Range TokenIds(const ModelConfig&, const RankShape& shape) {
    return {shape.first_token_id, shape.num_token_ids};
  }

  Range PartOf(int rank, Part part) const { return part(config, shapes[rank]); }

  // To each rank its rows of each tensor that is there, one under the other.
  template <typename Place>
  absl::Status PackRows(Tensors tensors, Part part, Place place) const {
    for (size_t r = 0; r < devices.size(); ++r) {
      const Range rows = PartOf(static_cast<int>(r), part);
      std::vector<WeightRows> parts;
      int64_t k = 0;
      for (const TensorView* tensor : tensors) {
        if (!tensor->present()) continue;
        k = tensor->shape[1];
        for (const TensorView& run : DenseRuns(*tensor, rows.first, rows.count)) {
          parts.push_back(
              {.data = run.bytes.data(), .dtype = run.dtype, .num_rows = run.shape[0]});
        }
      }
      if (!parts.empty()) RETURN_IF_ERROR(PackFor(r, parts, k, place(r)));
    }
    Release(tensors);
    return absl::OkStatus();
  }

  // To each rank its columns.
  template <typename Place>
  absl::Status PackColumns(const TensorView& tensor, Part part, Place place) const {
    for (size_t r = 0; r < devices.size(); ++r) {
      const Range columns = PartOf(static_cast<int>(r), part);
      const WeightRows all{.data = tensor.bytes.data() + columns.first * SizeOf(tensor.dtype),
                           .dtype = tensor.dtype,
                           .num_rows = tensor.shape[0],
                           .row_stride = tensor.shape[1]};
      RETURN_IF_ERROR(PackFor(r, {&all, 1}, columns.count, place(r)));
    }
    Release({&tensor});
    return absl::OkStatus();
  }

  absl::Status PackFor(size_t rank, std::span<const WeightRows> parts, int64_t k,
                       PackedMatrix& packed) const {
    ASSIGN_OR_RETURN(packed, devices[rank]->Pack({.parts = parts.data(),
                                                  .num_parts = std::ssize(parts),
                                                  .k = k,
                                                  .compute = compute}));
    return absl::OkStatus();
  }

  void Release(Tensors tensors) const {
    if (release == nullptr) return;
    for (const TensorView* tensor : tensors) {
      if (tensor->present()) release(tensor->bytes);
    }
  }

  // To each rank its part of each vector, one behind the other, as f32; the whole of them without
  // `part`. Empty when none is there.
  template <typename Place>
  absl::Status Copy(Tensors tensors, Part part, Place place) const {
    for (size_t r = 0; r < devices.size(); ++r) {
      std::vector<float> all;
      for (const TensorView* tensor : tensors) {
        if (!tensor->present()) continue;
        const Range range =
            part == nullptr ? Range{0, tensor->NumElements()} : PartOf(static_cast<int>(r), part);
        std::vector<float> values(range.count);
        ConvertToF32(*tensor, range.first, values);
        all.insert(all.end(), values.begin(), values.end());
      }
      if (all.empty()) continue;
      ASSIGN_OR_RETURN(place(r), CopyToDevice(*devices[r], std::as_bytes(std::span(all))));
    }
    return absl::OkStatus();
  }

  template <typename Place>
  absl::Status CopyNorm(const NormWeights& norm, Place place) const {
    RETURN_IF_ERROR(
        Copy({&norm.weight}, nullptr, [&](size_t r) -> Buffer& { return place(r).weight; }));
    return Copy({&norm.bias}, nullptr, [&](size_t r) -> Buffer& { return place(r).bias; });
  }
};

absl::Status PackLayer(const LayerWeights& w, const Packer& packer, size_t layer,
                       PackedRanks& ranks) {
  const auto vector = [&](Buffer PackedLayer::*member) {
    return [&ranks, layer, member](size_t r) -> Buffer& { return ranks[r].layers[layer].*member; };
  };
  const auto norm = [&](PackedNorm PackedLayer::*member) {
    return [&ranks, layer, member](size_t r) -> PackedNorm& {
      return ranks[r].layers[layer].*member;
    };
  };
  const auto weights = [&](PackedLinear PackedLayer::*member) {
    return [&ranks, layer, member](size_t r) -> PackedMatrix& {
      return (ranks[r].layers[layer].*member).weights;
    };
  };
  const auto bias = [&](PackedLinear PackedLayer::*member) {
    return [&ranks, layer, member](size_t r) -> Buffer& {
      return (ranks[r].layers[layer].*member).bias;
    };
  };
  const Packer::Part heads = Packer::Heads, kv_heads = Packer::KvHeads, ffn = Packer::Ffn;
  RETURN_IF_ERROR(packer.CopyNorm(w.attention_norm, norm(&PackedLayer::attention_norm)));
  RETURN_IF_ERROR(packer.PackRows({&w.q_proj}, heads, weights(&PackedLayer::q)));
  RETURN_IF_ERROR(packer.Copy({&w.q_bias}, heads, bias(&PackedLayer::q)));
  RETURN_IF_ERROR(packer.PackRows({&w.k_proj, &w.v_proj}, kv_heads, weights(&PackedLayer::kv)));
  RETURN_IF_ERROR(packer.Copy({&w.k_bias, &w.v_bias}, kv_heads, bias(&PackedLayer::kv)));
  RETURN_IF_ERROR(packer.Copy({&w.q_norm}, nullptr, vector(&PackedLayer::q_norm)));
  RETURN_IF_ERROR(packer.Copy({&w.k_norm}, nullptr, vector(&PackedLayer::k_norm)));
  RETURN_IF_ERROR(packer.PackColumns(w.o_proj, heads, weights(&PackedLayer::o)));
  RETURN_IF_ERROR(packer.Copy({&w.o_bias}, nullptr, bias(&PackedLayer::o)));
  RETURN_IF_ERROR(packer.Copy({&w.attention_output_norm}, nullptr,
                              vector(&PackedLayer::attention_output_norm)));
  RETURN_IF_ERROR(
      packer.Copy({&w.ffn_output_norm}, nullptr, vector(&PackedLayer::ffn_output_norm)));
  RETURN_IF_ERROR(packer.CopyNorm(w.ffn_norm, norm(&PackedLayer::ffn_norm)));
  RETURN_IF_ERROR(
      packer.PackRows({&w.gate_proj, &w.up_proj}, ffn, weights(&PackedLayer::gate_up)));
  RETURN_IF_ERROR(packer.Copy({&w.gate_bias, &w.up_bias}, ffn, bias(&PackedLayer::gate_up)));
  RETURN_IF_ERROR(packer.PackColumns(w.down_proj, ffn, weights(&PackedLayer::down)));
  return packer.Copy({&w.down_bias}, nullptr, bias(&PackedLayer::down));
}

// What lies between tokens and the first layer, and between the last and the logits.
absl::Status PackEnds(const ModelWeights& weights, const Packer& packer, PackedRanks& ranks) {
  const auto matrix = [&](PackedMatrix PackedModel::*member) {
    return [&ranks, member](size_t r) -> PackedMatrix& { return ranks[r].*member; };
  };
  const auto linear = [&](PackedLinear PackedModel::*member) {
    return [&ranks, member](size_t r) -> PackedMatrix& { return (ranks[r].*member).weights; };
  };
  const auto norm = [&](PackedNorm PackedModel::*member) {
    return [&ranks, member](size_t r) -> PackedNorm& { return ranks[r].*member; };
  };
  RETURN_IF_ERROR(packer.PackRows({&weights.embedding}, Packer::TokenIds,
                                  matrix(&PackedModel::embedding)));
  if (!packer.config.tied_embeddings) {
    RETURN_IF_ERROR(
        packer.PackRows({&weights.lm_head}, Packer::TokenIds, matrix(&PackedModel::lm_head)));
  }
  RETURN_IF_ERROR(packer.PackRows({&weights.positions}, Packer::Positions,
                                  matrix(&PackedModel::positions)));
  RETURN_IF_ERROR(packer.PackRows({&weights.embedding_in}, Packer::Hidden,
                                  linear(&PackedModel::embedding_in)));
  RETURN_IF_ERROR(packer.PackRows({&weights.embedding_out}, Packer::EmbeddingDim,
                                  linear(&PackedModel::embedding_out)));
  RETURN_IF_ERROR(packer.CopyNorm(weights.embedding_norm, norm(&PackedModel::embedding_norm)));
  return packer.CopyNorm(weights.final_norm, norm(&PackedModel::final_norm));
}

}  // namespace

int64_t SizeBytes(const PackedModel& model) {
  const auto of = [](const PackedLinear& linear) {
    return linear.weights.size_bytes() + linear.bias.size_bytes();
  };
  const auto of_norm = [](const PackedNorm& norm) {
    return norm.weight.size_bytes() + norm.bias.size_bytes();
  };
  int64_t bytes = model.embedding.size_bytes() + model.lm_head.size_bytes() +
                  model.positions.size_bytes() + of(model.embedding_in) +
                  of(model.embedding_out) + of_norm(model.embedding_norm) +
                  of_norm(model.final_norm);
  for (const PackedLayer& layer : model.layers) {
    bytes += of_norm(layer.attention_norm) + of_norm(layer.ffn_norm);
    bytes += layer.q_norm.size_bytes() + layer.k_norm.size_bytes() +
             layer.attention_output_norm.size_bytes() + layer.ffn_output_norm.size_bytes();
    for (const PackedLinear* linear : {&layer.q, &layer.kv, &layer.o, &layer.gate_up,
                                       &layer.down}) {
      bytes += of(*linear);
    }
  }
  return bytes;
}

absl::StatusOr<PackedRanks> PackModel(const ModelConfig& config, const ModelWeights& weights,
                                      DType compute, std::span<Device* const> devices,
                                      const ReleaseFn& release) {
  Packer packer{config, compute, devices, release, {}};
  const auto size = static_cast<int>(devices.size());
  for (int r = 0; r < size; ++r) packer.shapes.push_back(ShardOf(config, r, size));
  PackedRanks ranks(devices.size());
  for (PackedModel& rank : ranks) rank.layers.resize(weights.layers.size());
  RETURN_IF_ERROR(PackEnds(weights, packer, ranks));
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    RETURN_IF_ERROR(PackLayer(weights.layers[layer], packer, layer, ranks));
  }
  return ranks;
}

}  // namespace baton
