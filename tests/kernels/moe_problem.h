#pragma once

#include <algorithm>
#include <numeric>

#include "tests/kernels/kernel_fixture.h"

namespace baton {

// MoeRouting of one token in double, by sorting.
struct RoutingReference {
  std::vector<int32_t> ids;
  std::vector<double> weights;
};

inline std::vector<double> ReferenceScores(const MoeRoutingArgs& args, const float* logits) {
  std::vector<double> scores(logits, logits + args.num_experts);
  const double greatest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& s : scores) {
    const bool softmax = args.scoring == MoeScoring::kSoftmax;
    s = softmax ? std::exp(s - greatest) : 1 / (1 + std::exp(-s));
    sum += s;
  }
  if (args.scoring == MoeScoring::kSoftmax) {
    for (double& s : scores) s /= sum;
  }
  return scores;
}

inline RoutingReference ReferenceRouting(const MoeRoutingArgs& args, const float* logits) {
  const std::vector<double> scores = ReferenceScores(args, logits);
  std::vector<double> keys(logits, logits + args.num_experts);
  for (int64_t e = 0; args.selection_bias != nullptr && e < args.num_experts; ++e) {
    keys[e] = scores[e] + args.selection_bias[e];
  }
  const int64_t size = args.num_experts / args.num_groups;
  std::vector<double> ranks;
  for (int64_t g = 0; g < args.num_groups; ++g) {
    std::vector<double> group(keys.begin() + g * size, keys.begin() + (g + 1) * size);
    std::sort(group.rbegin(), group.rend());
    const bool two = args.selection_bias != nullptr && size > 1;
    ranks.push_back(two ? group[0] + group[1] : group[0]);
  }
  std::vector<int32_t> groups(args.num_groups);
  std::iota(groups.begin(), groups.end(), 0);
  std::stable_sort(groups.begin(), groups.end(),
                   [&](int32_t a, int32_t b) { return ranks[a] > ranks[b]; });
  groups.resize(args.top_groups);
  RoutingReference out;
  for (int32_t e = 0; e < args.num_experts; ++e) {
    if (std::find(groups.begin(), groups.end(), e / size) != groups.end()) out.ids.push_back(e);
  }
  std::stable_sort(out.ids.begin(), out.ids.end(),
                   [&](int32_t a, int32_t b) { return keys[a] > keys[b]; });
  out.ids.resize(args.top_k);
  double sum = 1e-20;
  for (const int32_t id : out.ids) sum += scores[id];
  for (const int32_t id : out.ids) {
    out.weights.push_back(scores[id] / (args.renormalize ? sum : 1) * args.scaling_factor);
  }
  return out;
}

// Kernels that multiply in a type of their own.
class HasOwnProducts {
 public:
  virtual ~HasOwnProducts() = default;
  virtual DType compute() const = 0;
  virtual PackedMatrix PackRows(const std::vector<float>& values, int64_t n, int64_t k) const = 0;
};

inline DType ComputeOf(CpuKernels& kernels) {
  const auto* own = dynamic_cast<const HasOwnProducts*>(&kernels);
  return own == nullptr ? DType::kF32 : own->compute();
}

// One matrix [n, k] of `values` for each expert.
inline std::vector<PackedMatrix> PackExperts(CpuKernels& kernels, int64_t n, int64_t k, DType dtype,
                                             const std::vector<float>& values) {
  const auto* own = dynamic_cast<const HasOwnProducts*>(&kernels);
  const std::vector<std::byte> stored = Encode(dtype, values);
  std::vector<PackedMatrix> out;
  for (size_t at = 0; at < values.size(); at += n * k) {
    if (own != nullptr) {
      const auto begin = values.begin() + static_cast<ptrdiff_t>(at);
      out.push_back(own->PackRows({begin, begin + n * k}, n, k));
      continue;
    }
    const WeightRows part{stored.data() + at * SizeOf(dtype), dtype, n};
    out.push_back(*kernels.PackWeights({.parts = &part, .num_parts = 1, .k = k}));
  }
  return out;
}

// A layer of experts out of the operators, with its memory: allocates nothing after the first step
// of a size.
struct MoeLayer {
  int64_t dim = 0;
  int64_t ffn = 0;
  std::vector<PackedMatrix> gate_up;  // Of the local experts, [2 * ffn, dim].
  std::vector<PackedMatrix> down;     // [dim, ffn]
  DType compute = DType::kF32;
  std::vector<int32_t> expert_map;  // Empty: all are local.

  std::vector<int32_t> ids, order, positions, offsets;
  std::vector<float> weights, hidden, activated, y;

  // `routing` with its logits and options, without its outputs.
  absl::Status Run(CpuKernels& kernels, MoeRoutingArgs routing, const float* x, const float* shared,
                   float* out) {
    const int64_t tokens = routing.num_tokens, rows = tokens * routing.top_k;
    const auto experts = static_cast<int64_t>(gate_up.size());
    for (auto* v : {&ids, &order, &positions}) v->resize(rows);
    weights.resize(rows);
    offsets.resize(experts + 1);
    // Poison: what no operator writes must not be read.
    hidden.assign(rows * 2 * ffn, NAN);
    activated.assign(rows * ffn, NAN);
    y.assign(rows * dim, NAN);
    routing.expert_ids = ids.data();
    routing.weights = weights.data();
    absl::Status status = kernels.MoeRouting(routing);
    if (status.ok()) {
      status = kernels.MoeAlign({.expert_ids = ids.data(),
                                 .num_tokens = tokens,
                                 .top_k = routing.top_k,
                                 .num_experts = routing.num_experts,
                                 .expert_map = expert_map.empty() ? nullptr : expert_map.data(),
                                 .num_local_experts = experts,
                                 .row_order = order.data(),
                                 .row_positions = positions.data(),
                                 .expert_offsets = offsets.data()});
    }
    if (status.ok()) status = Multiply(kernels, x, tokens, routing.top_k);
    if (!status.ok()) return status;
    return kernels.MoeCombine({.y = y.data(),
                               .y_stride = dim,
                               .num_rows = offsets[experts],
                               .expert_ids = ids.data(),
                               .row_positions = positions.data(),
                               .weights = weights.data(),
                               .num_tokens = tokens,
                               .top_k = routing.top_k,
                               .dim = dim,
                               .shared = shared,
                               .out = out,
                               .out_stride = dim});
  }

 private:
  absl::Status Multiply(CpuKernels& kernels, const float* x, int64_t tokens, int64_t top_k) {
    ExpertGemmArgs gemm{.a = x,
                        .a_stride = dim,
                        .num_a_rows = tokens,
                        .a_rounded_to = compute,
                        .row_order = order.data(),
                        .top_k = top_k,
                        .expert_offsets = offsets.data(),
                        .num_experts = static_cast<int64_t>(gate_up.size()),
                        .weights = gate_up.data(),
                        .out = hidden.data(),
                        .out_stride = 2 * ffn};
    absl::Status status = kernels.ExpertGemm(gemm);
    const int64_t rows = offsets[gate_up.size()];
    if (status.ok()) {
      status = kernels.ActivationAndMul({.gate_up = hidden.data(),
                                         .num_tokens = rows,
                                         .dim = ffn,
                                         .round_to = compute,
                                         .out = activated.data()});
    }
    if (!status.ok()) return status;
    gemm.a = activated.data();
    gemm.a_stride = ffn;
    gemm.num_a_rows = rows;
    gemm.row_order = nullptr;
    gemm.weights = down.data();
    gemm.out = y.data();
    gemm.out_stride = dim;
    return kernels.ExpertGemm(gemm);
  }
};

}  // namespace baton
