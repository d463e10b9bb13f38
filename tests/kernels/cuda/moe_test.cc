// The CPU's test bodies of experts' operators on a GPU: each call is checked as the CPU checks it,
// its operands go to memory of the very sizes that they need, between canaries, and what it wrote
// comes back.
#include "kernels/cuda/moe.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "kernels/cpu/check_args.h"
#include "kernels/cuda/expert_gemm.h"
#include "tests/kernels/cuda/device_fixture.h"
#include "tests/kernels/fuzz_fixture.h"
#include "tests/kernels/moe_problem.h"

namespace baton {
namespace {

using cuda::DeviceArray;
using cuda::DeviceFloats;

template <typename T>
std::vector<T> Copied(const T* from, int64_t n) {
  return from == nullptr ? std::vector<T>() : std::vector<T>(from, from + n);
}

template <typename T>
void CopyTo(T* to, const std::vector<T>& from) {
  std::copy(from.begin(), from.end(), to);
}

// Rows with a stride: up to the end of the last.
int64_t Span(int64_t rows, int64_t stride, int64_t width) {
  return rows == 0 ? 0 : (rows - 1) * stride + width;
}
int64_t SpanOf(int64_t segments, int64_t segment_stride, int64_t span) {
  return span == 0 ? 0 : Span(segments, segment_stride, span);
}

absl::Status EndOf(cudaError_t launched) {
  if (launched == cudaSuccess) launched = cudaDeviceSynchronize();
  if (launched == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(emulation::LastMessage());
}

class ExpertsOnDevice : public CpuKernels, public HasOwnProducts {
 public:
  explicit ExpertsOnDevice(DType compute)
      : CpuKernels(*SelectKernelSet("portable"), 1), compute_(compute) {}

  DType compute() const override { return compute_; }
  PackedMatrix PackRows(const std::vector<float>& values, int64_t n, int64_t k) const override {
    return cuda::DeviceMatrix(compute_, values, n, k);
  }

  absl::Status MoeRouting(const MoeRoutingArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    if (host.num_tokens == 0) return EndOf(cuda::MoeRouting(host, nullptr));
    Begin();
    const int64_t choices = host.num_tokens * host.top_k;
    const DeviceArray<float> logits(
        Copied(host.logits, Span(host.num_tokens, host.logits_stride, host.num_experts)));
    const DeviceArray<float> bias(Copied(host.selection_bias, host.num_experts));
    const DeviceArray<int32_t> ids(Copied(host.expert_ids, choices));
    const DeviceArray<float> weights(Copied(host.weights, choices));
    MoeRoutingArgs args = host;
    args.logits = logits.data();
    args.selection_bias = host.selection_bias == nullptr ? nullptr : bias.data();
    args.expert_ids = ids.data();
    args.weights = weights.data();
    RETURN_IF_ERROR(EndOf(cuda::MoeRouting(args, nullptr)));
    CopyTo(host.expert_ids, ids.Read());
    CopyTo(host.weights, weights.Read());
    return absl::OkStatus();
  }

  absl::Status MoeAlign(const MoeAlignArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    Begin();
    const int64_t choices = host.num_tokens * host.top_k;
    const DeviceArray<int32_t> ids(Copied(host.expert_ids, choices)),
        map(Copied(host.expert_map, host.num_experts)), order(Copied(host.row_order, choices)),
        positions(Copied(host.row_positions, choices)),
        offsets(Copied(host.expert_offsets, host.num_local_experts + 1));
    MoeAlignArgs args = host;
    args.expert_ids = ids.data();
    args.expert_map = host.expert_map == nullptr ? nullptr : map.data();
    args.row_order = order.data();
    args.row_positions = positions.data();
    args.expert_offsets = offsets.data();
    RETURN_IF_ERROR(EndOf(cuda::MoeAlign(args, nullptr)));
    CopyTo(host.row_order, order.Read());
    CopyTo(host.row_positions, positions.Read());
    CopyTo(host.expert_offsets, offsets.Read());
    return absl::OkStatus();
  }

  absl::Status ExpertGemm(const ExpertGemmArgs& host) override {
    RETURN_IF_ERROR(CheckAsCpus(host));
    const int64_t rows = host.num_experts == 0 ? 0 : host.expert_offsets[host.num_experts];
    if (rows == 0) return absl::OkStatus();
    Begin();
    const int64_t k = host.weights->k(), n = host.weights->n();
    const int64_t a_rows = host.row_order == nullptr ? rows : host.num_a_rows;
    const DeviceFloats a(compute_, Copied(host.a.f32(), Span(a_rows, host.a_stride, k)));
    const DeviceFloats out(DType::kF32,
                           Copied(host.out.f32(), SpanOf(host.num_segments, host.segment_stride,
                                                         Span(rows, host.out_stride, n))));
    const DeviceArray<int32_t> order(Copied(host.row_order, rows)),
        offsets(Copied(host.expert_offsets, host.num_experts + 1));
    const DeviceArray<float> bias(Copied(host.bias, host.num_experts * n));
    ExpertGemmArgs args = host;
    if (host.row_order != nullptr) {  // No grid for rows that nobody names.
      const int64_t named = *std::max_element(host.row_order, host.row_order + rows) + int64_t{1};
      args.top_k = std::min(host.top_k, named);
    }
    args.a = a;
    args.out = out;
    args.row_order = host.row_order == nullptr ? nullptr : order.data();
    args.expert_offsets = offsets.data();
    args.bias = host.bias == nullptr ? nullptr : bias.data();
    RETURN_IF_ERROR(EndOf(cuda::ExpertGemm(args, nullptr)));
    CopyTo(host.out.f32(), out.Read());
    return absl::OkStatus();
  }

  // What is rounded is of that type on a device.
  absl::Status MoeCombine(const MoeCombineArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    if (host.num_tokens == 0) return EndOf(cuda::MoeCombine(host, nullptr));
    Begin();
    const int64_t tokens = host.num_tokens, choices = tokens * host.top_k, dim = host.dim;
    const DeviceFloats y(DType::kF32,
                         Copied(host.y.f32(), SpanOf(host.segments, host.segment_stride,
                                                     Span(host.num_rows, host.y_stride, dim))));
    const DeviceFloats out(host.round_to,
                           Copied(host.out.f32(), Span(tokens, host.out_stride, dim)));
    const DeviceFloats shared(host.round_to, Copied(host.shared.f32(), tokens * dim));
    const DeviceArray<int32_t> ids(Copied(host.expert_ids, choices)),
        positions(Copied(host.row_positions, choices));
    const DeviceArray<float> weights(Copied(host.weights, choices));
    MoeCombineArgs args = host;
    args.y = y;
    args.out = out;
    if (host.shared.data != nullptr) {
      args.shared = host.shared.data == host.out.data ? ConstFloats(out) : ConstFloats(shared);
    }
    args.expert_ids = ids.data();
    args.row_positions = positions.data();
    args.weights = weights.data();
    RETURN_IF_ERROR(EndOf(cuda::MoeCombine(args, nullptr)));
    CopyTo(host.out.f32(), out.Read());
    return absl::OkStatus();
  }

 private:
  void Begin() { emulation::SetSeed(++calls_); }

  // All but whose weights they are.
  static absl::Status CheckAsCpus(const ExpertGemmArgs& host) {
    RETURN_IF_ERROR(CheckShapes(host));
    ExpertGemmArgs args = host;
    std::vector<PackedMatrix> weights;
    for (int64_t e = 0; e < host.num_experts; ++e) {
      const PackedMatrix& w = host.weights[e];
      weights.emplace_back(w.n(), w.k(), w.dtype(), WeightFormat::kCpuPanels,
                           Buffer(w.data(), w.size_bytes(), nullptr));
    }
    args.weights = weights.data();
    return CheckArgs(args);
  }

  const DType compute_;
  uint64_t calls_ = 0;
};

}  // namespace

inline namespace BATON_FUZZED {

std::vector<std::string> FuzzedNames() { return {"cuda_bf16", "cuda_f16"}; }

std::unique_ptr<CpuKernels> MakeFuzzed(const std::string& name, int) {
  emulation::ResetDevice();
  return std::make_unique<ExpertsOnDevice>(name == "cuda_f16" ? DType::kF16 : DType::kBF16);
}

bool FuzzedLacksForms() { return false; }
AttentionShapes Served(AttentionShapes shapes, uint64_t) { return shapes; }

}  // inline namespace BATON_FUZZED

namespace cuda {
namespace {

class MoeTypesTest : public DeviceCaseTest {};

// Rows that vectors can load and rows that they cannot.
TEST_P(MoeTypesTest, CombinesRowsOfEveryType) {
  const auto [in, out_type, seed] = GetParam();
  const int64_t tokens = 3, k = 2, rows = 5;
  const std::vector<int32_t> ids = {4, 1, 0, 3, 2, 2}, positions = {4, 0, 1, 3, -1, 2};
  const std::vector<float> weights = RandomFloats(seed, tokens * k);
  for (const auto& [dim, segments, gap] : {std::tuple{int64_t{4}, 1, 0},
                                           {6, 1, 0},
                                           {520, 1, 0},
                                           {521, 1, 0},
                                           {520, 2, 4},
                                           {4, 4, 0},
                                           {521, 4, 3},
                                           {520, 8, 1},
                                           {524, 8, 8}}) {
    const int64_t segment_stride = rows * dim + gap;
    const std::vector<float> y = Rounded(in, RandomFloats(seed + 1, segments * segment_stride));
    const std::vector<float> shared = Rounded(out_type, RandomFloats(seed + 2, tokens * dim));
    const DeviceFloats there_y(in, y), there_shared(out_type, shared), out(out_type, tokens * dim);
    const DeviceArray<int32_t> there_ids(ids), there_positions(positions);
    const DeviceArray<float> there_weights(weights);
    ASSERT_EQ(MoeCombine({.y = there_y,
                          .y_stride = dim,
                          .num_rows = rows,
                          .segments = segments,
                          .segment_stride = segment_stride,
                          .expert_ids = there_ids.data(),
                          .row_positions = there_positions.data(),
                          .weights = there_weights.data(),
                          .num_tokens = tokens,
                          .top_k = k,
                          .dim = dim,
                          .shared = there_shared,
                          .round_to = out_type,
                          .out = out,
                          .out_stride = dim},
                         nullptr),
              cudaSuccess);
    const int orders[3][2] = {{1, 0}, {0, 1}, {0, 1}};
    std::vector<float> expected(tokens * dim);
    for (int64_t i = 0; i < tokens * dim; ++i) {
      std::vector<float> sums(segments);
      for (const int c : orders[i / dim]) {
        const int64_t choice = i / dim * k + c;
        if (positions[choice] < 0) continue;
        for (int s = 0; s < segments; ++s) {
          const float one = y[s * segment_stride + positions[choice] * dim + i % dim];
          sums[s] = std::fma(weights[choice], one, sums[s]);
        }
      }
      for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
        for (size_t s = 0; s < sums.size() / 2; ++s) sums[s] = sums[2 * s] + sums[2 * s + 1];
      }
      expected[i] = sums[0] + shared[i];
    }
    EXPECT_EQ(out.Read(), Rounded(out_type, expected)) << dim << ", " << segments << " segments";
  }
}

INSTANTIATE_TEST_SUITE_P(Types, MoeTypesTest, testing::ValuesIn(DeviceCases()), NameOfCase);

class MoeDeviceTest : public DeviceTest {};

// What enters a sum may be of the CPU's vectors' lanes, fewer and more; and equal ones.
TEST_F(MoeDeviceTest, RoutingGivesTheCpusBits) {
  const auto cpu = MakeTestKernels("portable");
  uint64_t seed = 0;
  for (const int64_t experts : {1, 2, 15, 16, 17, 33, 128, 1000, 1024}) {
    for (const auto scoring : {MoeScoring::kSoftmax, MoeScoring::kSigmoid}) {
      const int64_t tokens = 4, k = std::min<int64_t>(experts, experts == 33 ? 33 : 6);
      std::vector<float> logits = RandomFloats(++seed, tokens * experts);
      for (float& x : logits) x = seed % 3 == 0 ? std::round(x * 4) : x * 9;
      std::vector<int32_t> ids(tokens * k);
      std::vector<float> weights(tokens * k);
      MoeRoutingArgs args{.logits = logits.data(),
                          .logits_stride = experts,
                          .num_tokens = tokens,
                          .num_experts = experts,
                          .top_k = k,
                          .scoring = scoring,
                          .renormalize = seed % 2 == 0,
                          .expert_ids = ids.data(),
                          .weights = weights.data()};
      ASSERT_TRUE(cpu->MoeRouting(args).ok());
      std::vector<int32_t> got_ids(tokens * k);
      std::vector<float> got(tokens * k);
      args.expert_ids = got_ids.data();
      args.weights = got.data();
      ASSERT_TRUE(ExpertsOnDevice(DType::kBF16).MoeRouting(args).ok());
      EXPECT_EQ(got_ids, ids) << experts;
      EXPECT_EQ(std::memcmp(got.data(), weights.data(), got.size() * sizeof(float)), 0) << experts;
    }
  }
}

// Nor are the last of them computed alone.
TEST_F(MoeDeviceTest, MoreTokensThanAGridHasBlocksAreRefused) {
  const DeviceFloats logits(DType::kF32, std::vector<float>(4)), weights(DType::kF32, 1);
  const DeviceArray<int32_t> ids(std::vector<int32_t>{7});
  const MoeRoutingArgs args{.logits = logits.f32(),
                            .logits_stride = 4,
                            .num_tokens = (int64_t{1} << 32) + 1,
                            .num_experts = 4,
                            .top_k = 1,
                            .expert_ids = ids.data(),
                            .weights = weights.f32()};
  EXPECT_EQ(MoeRouting(args, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(ids.Read(), (std::vector<int32_t>{7}));
}

}  // namespace
}  // namespace cuda
}  // namespace baton
