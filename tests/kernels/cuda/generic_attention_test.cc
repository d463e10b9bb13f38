// The generic kernel beside the CPU's, bit by bit; what it computes is in the CPU's own bodies
// (library_cases.h).
#include "kernels/cuda/generic_attention.h"

#include <cstring>
#include <string>

#include "tests/kernels/cuda/device_library.h"
#include "tests/kernels/random_attention.h"

namespace baton::cuda {
namespace {

constexpr float kCanary = GuardedFloats::kCanary;

// Results and LSE of one device; what it does not write keeps its value.
struct Written {
  explicit Written(const AttentionProblem& p)
      : out(p.out_size(), kCanary), lse(p.total_q * p.shape.heads, kCanary) {}
  bool operator==(const Written& other) const {
    return std::memcmp(out.data(), other.out.data(), out.size() * 4) == 0 &&
           std::memcmp(lse.data(), other.lse.data(), lse.size() * 4) == 0;
  }
  std::vector<float> out, lse;
};

class GenericAttentionBitsTest : public DeviceTest {
 protected:
  // Calls run(kernels, out, lse) on both.
  template <typename Run>
  void ExpectSameBits(const AttentionProblem& p, const Run& run) {
    Written on_cpu(p), on_gpu(p);
    const absl::Status expected = run(*cpu_, on_cpu.out.data(), on_cpu.lse.data());
    ASSERT_TRUE(expected.ok()) << expected;
    const absl::Status status = run(*gpu_, on_gpu.out.data(), on_gpu.lse.data());
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(on_gpu == on_cpu);
  }

  const std::unique_ptr<CpuKernels> cpu_ = MakeTestKernels("auto");
  const std::unique_ptr<CpuKernels> gpu_ =
      std::make_unique<DeviceLibrary>(DType::kF32, DType::kF32);
};

TEST_F(GenericAttentionBitsTest, OfEveryFormLayoutTypeAndOptionAreThoseOfTheCpu) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const auto form = static_cast<AttentionForm>(seed % 4);
    AttentionShapes shape = RandomAttention(random, form == AttentionForm::kPaged);
    AddOptions(random, form, shape);
    // Halves of HND caches are the engine's kernel's.
    if (shape.layout == CacheLayout::kHnd) shape.compute = DType::kF32;
    AttentionProblem p(Fewer(shape, 3, seed % 3 == 0 ? 1200 : 60), seed);
    ExpectSameBits(p, [&](CpuKernels& kernels, float* out, float* lse) {
      return RunForm(kernels, form, AttentionSplit::kAuto, p, out, lse);
    });
    if (HasFailure()) return;
  }
}

TEST_F(GenericAttentionBitsTest, OfPartialsAndScalesAreThoseOfTheCpu) {
  AttentionProblem p({.heads = 4,
                      .kv_heads = 2,
                      .dim = 32,
                      .kv = DType::kFp8E4M3,
                      .sequences = {{1, 40}, {1, 1100}, {1, 0}, {1, 512}},
                      .scores = {.softcap = 3},
                      .kv_scale = 0.5f,
                      .layout = CacheLayout::kPacked,
                      .sinks = true},
                     3);
  const std::vector<float> descales = {0.5f, 1.5f, 0.25f, 2, 3, 0.75f, 1, 1.25f};
  std::vector<float> left[2];
  ExpectSameBits(p, [&](CpuKernels& kernels, float* out, float* lse) {
    std::vector<float>& states = left[&kernels == gpu_.get() ? 1 : 0];
    states.assign(4 * 4 * 3 * (2 + 32), kCanary);
    PagedAttentionArgs args = p.PagedArgs(out, AttentionSplit::kSplit, lse);
    args.scales = {descales.data(), descales.data(), descales.data(), 2, 0.75f};
    args.partials = {&states[0], &states[48], &states[96], 3};
    return kernels.PagedAttention(args);
  });
  EXPECT_EQ(std::memcmp(left[0].data(), left[1].data(), left[0].size() * 4), 0);
}

TEST_F(GenericAttentionBitsTest, OfAppendedAndRotatedTokensAreThoseOfTheCpu) {
  constexpr int64_t kSeqs = 2, kQueries = 3, kHeads = 4, kDim = 24, kRows = 40;
  AttentionProblem p({.heads = kHeads, .dim = kDim, .sequences = {{3, 20}, {3, 7}}}, 1);
  const std::vector<float> fresh = RandomFloats(2, kSeqs * kQueries * 2 * kDim);
  const std::vector<float> angles = RandomFloats(3, 2 * kRows * 8);
  const std::vector<int32_t> lens = {17, 4}, pads = {5, 0}, blocks = {2, 0};
  for (const bool interleaved : {false, true}) {
    std::vector<float> caches[2];
    ExpectSameBits(p, [&](CpuKernels& kernels, float* out, float* lse) {
      std::vector<float>& cache = caches[&kernels == gpu_.get() ? 1 : 0];
      cache = RandomFloats(4, 2 * 3 * kRows * 2 * kDim);
      AttentionWithKvCacheArgs args{.q = p.q.data(),
                                    .num_heads = kHeads,
                                    .num_seqs = kSeqs,
                                    .num_queries = kQueries,
                                    .k = fresh.data(),
                                    .v = fresh.data(),
                                    .num_new = kQueries};
      args.k_cache = {.data = reinterpret_cast<std::byte*>(cache.data()),
                      .layout = CacheLayout::kNhd,
                      .num_blocks = 3,
                      .num_heads = 2,
                      .block_size = kRows,
                      .dim = kDim,
                      .block_stride = kRows * 2 * kDim};
      args.v_cache = args.k_cache;
      args.v_cache.data += cache.size() * 2;
      args.cache_seqlens = lens.data();
      args.cache_batch_idx = blocks.data();
      args.cache_leftpad = pads.data();
      args.rotary_cos = angles.data();
      args.rotary_sin = angles.data() + kRows * 8;
      args.num_rotary_positions = kRows;
      args.rotary_dim = 16;
      args.rotary_interleaved = interleaved;
      args.out = out;
      args.lse = lse;
      return kernels.AttentionWithKvCache(args);
    });
    EXPECT_TRUE(caches[0] == caches[1]);
  }
}

TEST_F(GenericAttentionBitsTest, OfMergedStatesAreThoseOfTheCpuWhereverTheyGo) {
  constexpr int64_t kTokens = 7;
  AttentionProblem p({.heads = 3, .dim = 40, .sequences = {{kTokens, 7}}}, 1);
  std::vector<float> a = RandomFloats(1, p.out_size()), b = RandomFloats(2, p.out_size());
  std::vector<float> lse_a = RandomFloats(3, kTokens * 3), lse_b = RandomFloats(4, kTokens * 3);
  lse_a[0] = lse_a[5] = lse_b[5] = -INFINITY;
  lse_b[1] = INFINITY;
  // An empty side is not read: of head 0 of tokens 0 and 5, and of 5 and 1.
  for (const int64_t token : {0, 5}) std::fill_n(a.begin() + token * 3 * 40, 40, NAN);
  for (const int64_t token : {5, 1}) std::fill_n(b.begin() + token * 3 * 40, 40, NAN);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int over : {0, 1, 2}) {  // Over neither side, over one of them.
      ExpectSameBits(p, [&](CpuKernels& kernels, float* out, float* lse) {
        if (over > 0) std::copy_n((over == 1 ? a : b).data(), p.out_size(), out);
        if (over > 0) std::copy_n((over == 1 ? lse_a : lse_b).data(), kTokens * 3, lse);
        return kernels.MergeAttentionStates({.out_a = over == 1 ? out : a.data(),
                                             .lse_a = over == 1 ? lse : lse_a.data(),
                                             .out_b = over == 2 ? out : b.data(),
                                             .lse_b = over == 2 ? lse : lse_b.data(),
                                             .num_tokens = kTokens,
                                             .num_heads = 3,
                                             .dim = 40,
                                             .round_to = type,
                                             .out = out,
                                             .lse = lse});
      });
    }
  }
}

// Blocks behind 2^33 elements: what is written and read there is what is at the beginning.
class FarDevice : public DeviceLibrary {
 public:
  FarDevice() : DeviceLibrary(DType::kF32, DType::kF32) {}

 private:
  int64_t Far(const CachePlane& plane) const override { return FarBlocks(plane); }
};

TEST_F(GenericAttentionBitsTest, OfCachesThat32BitsCannotCountAreThoseOfOthers) {
  FarDevice far;
  constexpr int64_t kTokens = 2, kDim = 16, kBlockSize = 4;
  const std::vector<float> fresh = RandomFloats(1, kTokens * kDim);
  const std::vector<int32_t> lens = {3, 5}, table = {2, 1, 0, 3}, batch = {3, 1}, cu = {0, 4, 10};
  const std::vector<int64_t> slots = {2 * kBlockSize + 3, 3 * kBlockSize + 1};
  for (const auto layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    for (const bool paged : {false, true}) {
      std::vector<std::vector<float>> written;
      for (CpuKernels* kernels : {cpu_.get(), static_cast<CpuKernels*>(&far)}) {
        std::vector<float> cache = RandomFloats(2, 2 * 4 * kBlockSize * 2 * kDim);
        CachePlane k{.data = reinterpret_cast<std::byte*>(cache.data()),
                     .layout = layout,
                     .num_blocks = 4,
                     .num_heads = 1,
                     .block_size = paged ? kBlockSize : 2 * kBlockSize,
                     .dim = kDim,
                     .block_stride = 2 * kBlockSize * kDim};
        CachePlane v = k;
        v.data += cache.size() * 2;
        std::vector<float> out(kTokens * kDim), k_out(10 * kDim), v_out(10 * kDim);
        AttentionWithKvCacheArgs args{.q = fresh.data(),
                                      .num_heads = 1,
                                      .num_seqs = 2,
                                      .num_queries = 1,
                                      .k = fresh.data(),
                                      .v = fresh.data(),
                                      .num_new = 1,
                                      .k_cache = k,
                                      .v_cache = v,
                                      .cache_seqlens = lens.data(),
                                      .out = out.data()};
        args.block_table = paged ? table.data() : nullptr;
        args.max_blocks = paged ? 2 : 0;
        args.cache_batch_idx = paged ? nullptr : batch.data();
        const absl::Status appended = kernels->AttentionWithKvCache(args);
        ASSERT_TRUE(appended.ok()) << appended;
        written.push_back(cache);
        written.push_back(out);
        if (!paged) continue;
        const absl::Status updated =
            kernels->UpdateKvCache({.append = {.key = fresh.data(),
                                               .key_stride = kDim,
                                               .value = fresh.data(),
                                               .value_stride = kDim,
                                               .slot_mapping = slots.data(),
                                               .num_tokens = kTokens,
                                               .k_cache = k,
                                               .v_cache = v},
                                    .num_seqs = 2,
                                    .cu_seqlens_k = cu.data(),
                                    .block_table = table.data(),
                                    .max_blocks = 2,
                                    .k_out = k_out.data(),
                                    .k_out_stride = kDim,
                                    .v_out = v_out.data(),
                                    .v_out_stride = kDim});
        ASSERT_TRUE(updated.ok()) << updated;
        written.insert(written.end(), {cache, k_out, v_out});
      }
      const auto half = std::ssize(written) / 2;
      EXPECT_TRUE(std::equal(written.begin(), written.begin() + half, written.begin() + half))
          << static_cast<int>(layout) << paged;
    }
  }
}

// A sum of 0 says that a row has seen no key; one of NaN does not.
TEST_F(GenericAttentionBitsTest, WhatIsNoNumberStaysNone) {
  AttentionProblem p({.dim = 16, .sequences = {{2, 40}}, .layout = CacheLayout::kNhd}, 1);
  p.q[3] = NAN;
  std::vector<float> out(p.out_size());
  ASSERT_TRUE(gpu_->VarlenAttention(p.Args(out.data())).ok());
  for (int d = 0; d < 16; ++d) {
    EXPECT_TRUE(std::isnan(out[d]));
    EXPECT_TRUE(std::isfinite(out[16 + d]));
  }
}

// Scores beyond what a float holds: of some rows no number, and of the same ones on both.
TEST_F(GenericAttentionBitsTest, OfScoresBeyondAFloatAreNoNumberWhereTheCpuSaysSo) {
  for (const float x : {3e38f, -3e38f, INFINITY, -INFINITY}) {
    AttentionProblem p({.dim = 16, .sequences = {{3, 40}}, .layout = CacheLayout::kNhd}, 1);
    std::fill_n(p.q.begin(), 4, x);  // Of the first query.
    p.q[16] = x;
    std::vector<float> out[2] = {std::vector<float>(p.out_size()), {}};
    out[1] = out[0];
    std::vector<float> lse[2] = {std::vector<float>(3), std::vector<float>(3)};
    ASSERT_TRUE(cpu_->VarlenAttention(p.Args(out[0].data(), lse[0].data())).ok());
    ASSERT_TRUE(gpu_->VarlenAttention(p.Args(out[1].data(), lse[1].data())).ok());
    const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    EXPECT_TRUE(std::ranges::equal(out[0], out[1], same)) << x;
    EXPECT_TRUE(std::ranges::equal(lse[0], lse[1], same)) << x;
    EXPECT_TRUE(std::isfinite(out[1][2 * 16])) << x;
  }
}

TEST_F(GenericAttentionBitsTest, AnLseThatIsNoNumberIsNoEmptySide) {
  const std::vector<float> side(8, 1.0f);
  for (const auto& [a, b] :
       {std::pair{NAN, -INFINITY}, {-INFINITY, NAN}, {NAN, 1.0f}, {1.0f, NAN}, {NAN, INFINITY}}) {
    for (CpuKernels* kernels : {cpu_.get(), gpu_.get()}) {
      std::vector<float> out(8);
      float lse = 0, lse_a = a, lse_b = b;
      ASSERT_TRUE(kernels
                      ->MergeAttentionStates({.out_a = side.data(),
                                              .lse_a = &lse_a,
                                              .out_b = side.data(),
                                              .lse_b = &lse_b,
                                              .num_tokens = 1,
                                              .num_heads = 1,
                                              .dim = 8,
                                              .out = out.data(),
                                              .lse = &lse})
                      .ok());
      EXPECT_TRUE(std::isnan(lse)) << a << ' ' << b;
      for (const float x : out) EXPECT_TRUE(std::isnan(x)) << a << ' ' << b;
    }
  }
}

// More rows than a grid has blocks: nothing is launched.
TEST_F(GenericAttentionBitsTest, MoreRowsThanAGridHasBlocksOrNobodyKnowsAreRefused) {
  const DeviceFloats out(DType::kF32, 64);
  const DeviceArray<int32_t> zeros{std::vector<int32_t>(4)};
  PagedAttentionArgs args{.q = out,
                          .num_heads = 1 << 16,
                          .num_seqs = 1 << 16,
                          .seq_lens = zeros.data(),
                          .max_seq_len = 1,
                          .out = out};
  args.k_cache = {.data = static_cast<std::byte*>(out.data()),
                  .num_blocks = 1,
                  .num_heads = 1,
                  .block_size = 1,
                  .dim = 1,
                  .block_stride = 1};
  args.v_cache = args.k_cache;
  EXPECT_EQ(GenericAttention(args, nullptr), cudaErrorInvalidValue);
  // Nor how many there are is guessed.
  EXPECT_EQ(GenericAttention(VarlenAttentionArgs{.num_seqs = 1}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(PrefixAttention({.num_seqs = 1}, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace baton::cuda
