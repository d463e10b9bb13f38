#include "common/model/packed_model.h"

#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mapped_pages.h"
#include "common/base/status.h"
#include "common/model/device_memory.h"
#include "common/model/rank_shape.h"

namespace baton {
namespace {

struct Range {
  int64_t first = 0;
  int64_t count = 0;
};

// What packing needs beside the tensors.
struct Packer {
  const ModelConfig& config;
  DType compute;
  std::span<Device* const> devices;
  const PackOptions& options;
  std::vector<RankShape> shapes;
  std::span<Buffer> staged;  // Of each rank, for copies.

  // Which rows of a matrix, or columns, a rank has.
  using Part = Range (*)(const ModelConfig& config, const RankShape& shape);
  struct Share {
    const TensorView* tensor;
    Part part;
  };
  using Shares = std::initializer_list<Share>;

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
  static Range ExpertFfn(const ModelConfig&, const RankShape& shape) {
    return {int64_t{shape.rank} * shape.expert_ffn_size, shape.expert_ffn_size};
  }
  static Range SharedFfn(const ModelConfig&, const RankShape& shape) {
    return {int64_t{shape.rank} * shape.shared_ffn_size, shape.shared_ffn_size};
  }
  static Range AllExperts(const ModelConfig& config, const RankShape&) {
    return {0, config.experts.count};
  }
  static Range OneRow(const ModelConfig&, const RankShape&) { return {0, 1}; }
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
  absl::Status PackRows(Shares shares, Place place) const {
    for (size_t r = 0; r < devices.size(); ++r) {
      std::vector<WeightRows> parts;
      int64_t k = 0;
      for (const auto& [tensor, part] : shares) {
        if (!tensor->present()) continue;
        const Range rows = PartOf(static_cast<int>(r), part);
        k = tensor->shape[1];
        for (const TensorView& run : DenseRuns(*tensor, rows.first, rows.count)) {
          parts.push_back(
              {.data = run.bytes.data(), .dtype = run.dtype, .num_rows = run.shape[0]});
        }
      }
      if (!parts.empty()) RETURN_IF_ERROR(PackFor(r, parts, k, place(r)));
    }
    for (const Share& share : shares) Release(*share.tensor);
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
    Release(tensor);
    return absl::OkStatus();
  }

  absl::Status PackFor(size_t rank, std::span<const WeightRows> parts, int64_t k,
                       PackedMatrix& packed) const {
    const PackWeightsArgs args{
        .parts = parts.data(), .num_parts = std::ssize(parts), .k = k, .compute = compute};
    Device& device = *devices[rank];
    ASSIGN_OR_RETURN(packed, options.threads == nullptr ? device.Pack(args)
                                                        : device.PackBy(*options.threads, args));
    return absl::OkStatus();
  }

  void Release(const TensorView& tensor) const {
    if (options.release != nullptr && tensor.present()) options.release(tensor.bytes);
  }

  // To each rank its part of each vector, one behind the other, as f32; the whole of them without
  // `part`. Empty when none is there.
  template <typename Place>
  absl::Status Copy(Shares shares, Place place) const {
    for (size_t r = 0; r < devices.size(); ++r) {
      std::vector<float> all;
      for (const auto& [tensor, part] : shares) {
        if (!tensor->present()) continue;
        RETURN_IF_ERROR(TouchPages(tensor->bytes));
        const Range range =
            part == nullptr ? Range{0, tensor->NumElements()} : PartOf(static_cast<int>(r), part);
        std::vector<float> values(range.count);
        ConvertToF32(*tensor, range.first, values);
        all.insert(all.end(), values.begin(), values.end());
      }
      if (all.empty()) continue;
      const std::span<const std::byte> bytes = std::as_bytes(std::span(all));
      ASSIGN_OR_RETURN(place(r), CopyToDevice(*devices[r], bytes, &staged[r]));
    }
    return absl::OkStatus();
  }

  template <typename Place>
  absl::Status CopyNorm(const NormWeights& norm, Place place) const {
    RETURN_IF_ERROR(
        Copy({{&norm.weight, nullptr}}, [&](size_t r) -> Buffer& { return place(r).weight; }));
    return Copy({{&norm.bias, nullptr}}, [&](size_t r) -> Buffer& { return place(r).bias; });
  }
};

// Rows of one kind of matrix of all experts are read as one array.
absl::Status CheckOneType(const LayerWeights& w, size_t layer) {
  for (const ExpertWeights& expert : w.experts) {
    for (const TensorView* tensor : {&expert.gate_proj, &expert.up_proj, &expert.down_proj}) {
      if (tensor->dtype == w.experts[0].gate_proj.dtype) continue;
      return absl::UnimplementedError(
          absl::StrCat("weights: the experts of layer ", layer, " are of several dtypes, ",
                       std::string(ToString(w.experts[0].gate_proj.dtype)), " and ",
                       std::string(ToString(tensor->dtype)), "; one is supported"));
    }
  }
  return absl::OkStatus();
}

absl::Status PackExperts(const LayerWeights& w, const Packer& packer, size_t layer,
                         PackedRanks& ranks) {
  RETURN_IF_ERROR(CheckOneType(w, layer));
  const auto experts = [&](size_t r) -> PackedExperts& { return ranks[r].layers[layer].experts; };
  const size_t count = w.experts.size();
  for (size_t r = 0; r < ranks.size(); ++r) {
    experts(r).gate_up.resize(count);
    experts(r).down.resize(count);
  }
  RETURN_IF_ERROR(packer.PackRows({{&w.router, Packer::AllExperts}},
                                  [&](size_t r) -> PackedMatrix& { return experts(r).router; }));
  RETURN_IF_ERROR(
      packer.PackRows({{&w.shared_gate, Packer::OneRow}},
                      [&](size_t r) -> PackedMatrix& { return experts(r).shared_gate; }));
  for (size_t e = 0; e < count; ++e) {
    RETURN_IF_ERROR(packer.PackRows(
        {{&w.experts[e].gate_proj, Packer::ExpertFfn}, {&w.experts[e].up_proj, Packer::ExpertFfn}},
        [&](size_t r) -> PackedMatrix& { return experts(r).gate_up[e]; }));
    RETURN_IF_ERROR(
        packer.PackColumns(w.experts[e].down_proj, Packer::ExpertFfn,
                           [&](size_t r) -> PackedMatrix& { return experts(r).down[e]; }));
  }
  return absl::OkStatus();
}

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
  const Packer::Part heads = Packer::Heads, kv_heads = Packer::KvHeads;
  const Packer::Part ffn = w.experts.empty() ? Packer::Ffn : Packer::SharedFfn;
  RETURN_IF_ERROR(packer.CopyNorm(w.attention_norm, norm(&PackedLayer::attention_norm)));
  RETURN_IF_ERROR(
      packer.PackRows({{&w.k_proj, kv_heads}, {&w.v_proj, kv_heads}, {&w.q_proj, heads}},
                      weights(&PackedLayer::qkv)));
  RETURN_IF_ERROR(packer.Copy({{&w.k_bias, kv_heads}, {&w.v_bias, kv_heads}, {&w.q_bias, heads}},
                              bias(&PackedLayer::qkv)));
  RETURN_IF_ERROR(packer.Copy({{&w.q_norm, nullptr}}, vector(&PackedLayer::q_norm)));
  RETURN_IF_ERROR(packer.Copy({{&w.k_norm, nullptr}}, vector(&PackedLayer::k_norm)));
  RETURN_IF_ERROR(packer.PackColumns(w.o_proj, heads, weights(&PackedLayer::o)));
  RETURN_IF_ERROR(packer.Copy({{&w.o_bias, nullptr}}, bias(&PackedLayer::o)));
  RETURN_IF_ERROR(packer.Copy({{&w.attention_output_norm, nullptr}},
                              vector(&PackedLayer::attention_output_norm)));
  RETURN_IF_ERROR(
      packer.Copy({{&w.ffn_output_norm, nullptr}}, vector(&PackedLayer::ffn_output_norm)));
  RETURN_IF_ERROR(packer.CopyNorm(w.ffn_norm, norm(&PackedLayer::ffn_norm)));
  RETURN_IF_ERROR(
      packer.PackRows({{&w.gate_proj, ffn}, {&w.up_proj, ffn}}, weights(&PackedLayer::gate_up)));
  RETURN_IF_ERROR(
      packer.Copy({{&w.gate_bias, ffn}, {&w.up_bias, ffn}}, bias(&PackedLayer::gate_up)));
  if (w.down_proj.present()) {
    RETURN_IF_ERROR(packer.PackColumns(w.down_proj, ffn, weights(&PackedLayer::down)));
  }
  RETURN_IF_ERROR(packer.Copy({{&w.down_bias, nullptr}}, bias(&PackedLayer::down)));
  return w.experts.empty() ? absl::OkStatus() : PackExperts(w, packer, layer, ranks);
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
  RETURN_IF_ERROR(
      packer.PackRows({{&weights.embedding, Packer::TokenIds}}, matrix(&PackedModel::embedding)));
  if (!packer.config.tied_embeddings) {
    RETURN_IF_ERROR(
        packer.PackRows({{&weights.lm_head, Packer::TokenIds}}, matrix(&PackedModel::lm_head)));
  }
  RETURN_IF_ERROR(
      packer.PackRows({{&weights.positions, Packer::Positions}}, matrix(&PackedModel::positions)));
  RETURN_IF_ERROR(packer.PackRows({{&weights.embedding_in, Packer::Hidden}},
                                  linear(&PackedModel::embedding_in)));
  RETURN_IF_ERROR(packer.PackRows({{&weights.embedding_out, Packer::EmbeddingDim}},
                                  linear(&PackedModel::embedding_out)));
  RETURN_IF_ERROR(packer.CopyNorm(weights.embedding_norm, norm(&PackedModel::embedding_norm)));
  return packer.CopyNorm(weights.final_norm, norm(&PackedModel::final_norm));
}

int64_t SizeBytes(const PackedExperts& experts) {
  int64_t bytes = experts.router.size_bytes() + experts.shared_gate.size_bytes();
  for (const PackedMatrix& matrix : experts.gate_up) bytes += matrix.size_bytes();
  for (const PackedMatrix& matrix : experts.down) bytes += matrix.size_bytes();
  return bytes;
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
    for (const PackedLinear* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      bytes += of(*linear);
    }
    bytes += SizeBytes(layer.experts);
  }
  return bytes;
}

absl::StatusOr<PackedRanks> PackModel(const ModelConfig& config, const ModelWeights& weights,
                                      DType compute, std::span<Device* const> devices,
                                      const PackOptions& options) {
  std::vector<Buffer> staged(devices.size());
  Packer packer{config, compute, devices, options, {}, staged};
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
