// The acceptance grid of attention: a cover of all pairs of values, and everything on top of it
// nightly. Of a GPU, in every layout; its own kernel for the engine has
// cuda/attention_grid_test.cc.
#include <cstdlib>
#include <iostream>

#include "tests/kernels/attention_cover.h"
#include "tests/kernels/library_cases.h"

namespace baton {
namespace {

using namespace attention_grid;  // NOLINT

// Not in the sanitizer build, which would need days.
bool Nightly() {
#ifdef __SANITIZE_ADDRESS__
  return false;
#else
  return std::getenv("BATON_NIGHTLY") != nullptr;
#endif
}

class AttentionGridTest : public LibraryTest {
 protected:
  void Run(const AttentionShapes& shape, uint64_t seed) {
    if (shape.layout == CacheLayout::kPacked && shape.dim % (16 / SizeOf(shape.kv)) != 0) {
      ExpectRefusal(shape);
      return;
    }
    AttentionProblem p(shape, seed);
    GuardedFloats out(p.out_size()), lse(p.total_q * shape.heads);
    const bool sparse = shape.sparsity.vert_stride > 1;
    const absl::Status status = sparse
                                    ? two_threads_->PagedAttention(p.PagedArgs(
                                          out.data(), AttentionSplit::kReference, lse.data()))
                                    : two_threads_->VarlenAttention(p.Args(out.data(), lse.data()));
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact()) << Describe(shape);
    p.Check(out.values(), lse.values(), Nightly() ? 64 : 12, Describe(shape));
    const auto expect_same_bits = [&](const absl::Status& again, GuardedFloats& got) {
      ASSERT_TRUE(again.ok()) << again;
      EXPECT_EQ(std::memcmp(got.data(), out.data(), p.out_size() * 4), 0) << Describe(shape);
    };
    GuardedFloats again(p.out_size());
    if (shape.layout == CacheLayout::kNhd && !sparse) {
      expect_same_bits(two_threads_->VarlenAttention(p.DenseArgs(again.data())), again);
    }
    if (!IsDecode(shape)) return;
    for (const auto split : {AttentionSplit::kSinglePass, AttentionSplit::kSplit}) {
      expect_same_bits(two_threads_->PagedAttention(p.PagedArgs(again.data(), split)), again);
    }
  }

  void ExpectRefusal(AttentionShapes shape) {
    shape.sequences = {{1, 1}};
    AttentionProblem p(shape, 1);
    std::vector<float> out(p.out_size());
    const absl::Status status = two_threads_->VarlenAttention(p.Args(out.data()));
    EXPECT_NE(status.message().find("k_cache.dim = "), absl::string_view::npos) << status;
  }

  // Emulated fma is slow, as are emulated GPUs.
  bool Slow() const { return GetParam() == "portable" || of_gpu(); }

  std::unique_ptr<CpuKernels> two_threads_ = MakeLibrary(GetParam(), 2);
};

TEST_P(AttentionGridTest, EveryPairOfValuesAgreesWithADoubleLoop) {
  const double budget = of_gpu() ? 1e5 : Nightly() ? 4e10 : Slow() ? 2e6 : 1e8;
  int left_out = 0;
  uint64_t seed = 100;
  for (const Case& c : PairwiseCover(1)) {
    ++seed;
    if (of_gpu()) {
      Run(Short(ShapesOf(c, budget), 12, seed % 4 == 0 ? 1100 : 140), seed);
      if (HasFailure()) return;
      continue;
    }
    if (!Nightly() && (kSequences[c[7]].back().second > 100000 || (Slow() && c[7] > 3))) {
      ++left_out;
      continue;
    }
    Run(ShapesOf(c, budget), seed);
    if (HasFatalFailure()) return;
  }
  if (left_out > 0) {
    std::cout << left_out << " large cases are left to a run with BATON_NIGHTLY=1\n";
  }
}

// Also the pairs that the grid above, which devices share, leaves out. A cache of the compute type
// is what other systems call "auto".
TEST_P(AttentionGridTest, EveryComputeTypeWithEveryCacheTypeAndLayoutAgreesWithADoubleLoop) {
  uint64_t seed = 1000;
  for (const DType compute : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const DType kv :
         {DType::kF32, DType::kF16, DType::kBF16, DType::kFp8E4M3, DType::kFp8E5M2}) {
      for (const CacheLayout layout : kLayouts) {
        for (const bool decode : {false, true}) {
          AttentionShapes shape{.heads = 4,
                                .kv_heads = 2,
                                .dim = 32,
                                .sequences = {{5, 5}, {3, 70}},
                                .kv_scale = 0.25f,
                                .scale_per_head = true,
                                .layout = layout};
          shape.compute = compute;
          shape.kv = kv;
          if (decode) shape.sequences = {{1, of_gpu() ? 70 : 530}, {1, 17}};
          Run(shape, ++seed);
        }
      }
    }
  }
}

TEST_P(AttentionGridTest, NamedCornersAgreeWithADoubleLoop) {
  std::vector<AttentionShapes> corners = {
      // OPT-125m and OPT-30b.
      {.heads = 12,
       .kv_heads = 12,
       .dim = 64,
       .kv = DType::kF16,
       .sequences = {{1, 195}, {7, 40}},
       .scores = {.scale = 0.125f},
       .compute = DType::kF16},
      {.heads = 56,
       .kv_heads = 56,
       .dim = 128,
       .kv = DType::kF16,
       .sequences = {{1, 195}},
       .scores = {.scale = 0.0883883f},
       .compute = DType::kF16},
      // A window that begins on a partial state's boundary, and one key after it.
      {.heads = 2,
       .kv_heads = 1,
       .dim = 64,
       .kv = DType::kBF16,
       .sequences = {{1, 1024}, {1, 1025}},
       .scores = {.window_left = 511},
       .compute = DType::kBF16},
      {.heads = 64,
       .kv_heads = 1,
       .dim = 256,
       .block_size = 256,
       .kv = DType::kFp8E4M3,
       .sequences = {{1, 513}},
       .kv_scale = 0.25f,
       .compute = DType::kBF16},
  };
  if (!Slow() || Nightly()) {
    corners.push_back({.heads = 2,
                       .kv_heads = 1,
                       .dim = 64,
                       .block_size = 64,
                       .kv = DType::kBF16,
                       .sequences = {{1, 131072}},
                       .compute = DType::kBF16});
  }
  uint64_t seed = 7;
  for (const AttentionShapes& shape : corners) Run(shape, ++seed);
}

BATON_FOR_EACH_LIBRARY(AttentionGridTest);

}  // namespace
}  // namespace baton
