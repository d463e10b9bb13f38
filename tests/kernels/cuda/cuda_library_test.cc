// What the operator library of a device refuses: each by the name of the argument, and nothing is
// written.
#include "kernels/cuda/cuda_library.h"

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

constexpr int64_t kDim = 16;
constexpr auto kBF16 = DType::kBF16;

class CudaLibraryTest : public DeviceTest {
 protected:
  template <typename Args>
  struct Spoiled {
    std::string message;  // Begins with it.
    std::function<void(Args&)> spoil;
  };
  // Runs `args` as they are, which has to be legal, and then each spoiled.
  template <typename Args>
  void ExpectNamed(absl::Status (OperatorLibrary::*op)(const Args&), const Args& args,
                   const std::vector<Spoiled<Args>>& cases) {
    const absl::Status legal = (library_.*op)(args);
    ASSERT_TRUE(legal.ok()) << legal;
    const auto before = Memory();
    for (const auto& [message, spoil] : cases) {
      Args spoiled = args;
      spoil(spoiled);
      const absl::Status status = (library_.*op)(spoiled);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << message << ": " << status;
      EXPECT_EQ(status.message().substr(0, message.size()), message) << status;
      EXPECT_TRUE(Memory() == before) << message;
    }
  }
  // All that an operator here may write.
  auto Memory() const { return std::array{out_.ReadBytes(), x_.ReadBytes(), v_.ReadBytes()}; }
  // Of two blocks of 8 tokens.
  CachePlane Plane(CacheLayout layout, DType dtype = kBF16) const {
    return PlaneIn(x_, layout, dtype);
  }
  CachePlane PlaneIn(const DeviceFloats& memory, CacheLayout layout, DType dtype = kBF16) const {
    return {.data = static_cast<std::byte*>(memory.data()),
            .dtype = dtype,
            .layout = layout,
            .num_blocks = 2,
            .num_heads = 1,
            .block_size = 8,
            .dim = kDim,
            .block_stride = 8 * kDim};
  }

  CudaLibrary library_{nullptr, Buffer(), Buffer(), kLeastSharedBytes};
  const DeviceFloats x_{DType::kF32, RandomFloats(1, 16 * kDim)};
  const DeviceFloats v_{DType::kF32, RandomFloats(3, 16 * kDim)};
  const DeviceFloats out_{DType::kF32, RandomFloats(2, 16 * kDim)};
  const DeviceArray<int32_t> zeros_{std::vector<int32_t>(8)};
  const DeviceArray<int32_t> starts_{std::vector<int32_t>{0, 1, 2, 3}};
  const DeviceArray<int32_t> lens_{std::vector<int32_t>(3, 5)};
  const DeviceArray<int64_t> slots_{std::vector<int64_t>{0, 1, -1}};
};

TEST_F(CudaLibraryTest, AttentionNamesWhatIsWrongAndMoreRowsThanAGridHas) {
  PagedAttentionArgs paged{.q = x_,
                           .q_stride = kDim,
                           .num_heads = 1,
                           .num_seqs = 3,
                           .block_tables = zeros_.data(),
                           .max_blocks = 1,
                           .seq_lens = lens_.data(),
                           .max_seq_len = 5,
                           .k_cache = Plane(CacheLayout::kNhd, DType::kF32),
                           .v_cache = Plane(CacheLayout::kNhd, DType::kF32),
                           .out = out_,
                           .out_stride = kDim};
  const auto many = [](auto& a) {
    a.num_heads = 1 << 16;
    a.q_stride = a.out_stride = kDim << 16;
  };
  ExpectNamed<PagedAttentionArgs>(
      &OperatorLibrary::PagedAttention, paged,
      {{"q = ", [](auto& a) { a.q.data = nullptr; }},
       {"out = ", [](auto& a) { a.out.data = nullptr; }},
       {"seq_lens = ", [](auto& a) { a.seq_lens = nullptr; }},
       {"block_tables = ", [](auto& a) { a.block_tables = nullptr; }},
       {"max_seq_len = -600",
        [&](auto& a) {
          a.max_seq_len = -600;
          a.partials = {out_.f32(), out_.f32(), out_.f32(), 1};
        }},
       {"num_heads = ", [](auto& a) { a.num_heads = 0; }},
       {"sparsity.block_size = 9",
        [](auto& a) { a.sparsity = {.vert_stride = 2, .block_size = 9}; }},
       {"partials.max_logits = ", [&](auto& a) { a.partials.exp_sums = out_.f32(); }},
       {"scales.output_scale = ", [](auto& a) { a.scales.output_scale = 0; }},
       {"num_seqs = 32768: must be on a GPU at most 32767", [&](auto& a) {
          many(a);
          a.num_seqs = 1 << 15;
        }}});
  const PrefixAttentionArgs prefix{.q = x_,
                                   .q_stride = kDim,
                                   .num_heads = 1,
                                   .k = x_,
                                   .k_stride = kDim,
                                   .v = x_,
                                   .v_stride = kDim,
                                   .num_seqs = 3,
                                   .cu_seqlens_q = starts_.data(),
                                   .num_tokens = 3,
                                   .seq_lens = lens_.data(),
                                   .block_table = zeros_.data(),
                                   .max_blocks = 1,
                                   .k_cache = Plane(CacheLayout::kHnd),
                                   .v_cache = Plane(CacheLayout::kHnd),
                                   .out = out_,
                                   .out_stride = kDim};
  ExpectNamed<PrefixAttentionArgs>(
      &OperatorLibrary::PrefixAttention, prefix,
      {{"k = ", [](auto& a) { a.k.data = nullptr; }},
       {"v_stride = ", [](auto& a) { a.v_stride = 1; }},
       {"cu_seqlens_q = ", [](auto& a) { a.cu_seqlens_q = nullptr; }},
       {"block_table = ", [](auto& a) { a.block_table = nullptr; }},
       {"num_tokens = 0: must be at least 1", [](auto& a) { a.num_tokens = 0; }},
       {"num_tokens = -1", [](auto& a) { a.num_tokens = -1; }},
       {"num_tokens = 32768: must be on a GPU at most 32767", [&](auto& a) {
          many(a);
          a.num_tokens = 1 << 15;
        }}});
}

// The reference's choice drops partials for few or many rows, and no row's bits with it.
TEST_F(CudaLibraryTest, WhoGivesPartialsHasTheKernelOfPartialsWhateverTheSizes) {
  const DeviceFloats q{kBF16, RandomFloats(4, 3 * kDim)}, k{kBF16, RandomFloats(5, 16 * kDim)},
      v{kBF16, RandomFloats(6, 16 * kDim)}, partial{DType::kF32, RandomFloats(7, 6 * kDim)};
  PagedAttentionArgs args{.q = q,
                          .q_stride = kDim,
                          .num_heads = 1,
                          .num_seqs = 3,
                          .block_tables = zeros_.data(),
                          .max_blocks = 1,
                          .seq_lens = lens_.data(),
                          .max_seq_len = 5,
                          .k_cache = PlaneIn(k, CacheLayout::kHnd),
                          .v_cache = PlaneIn(v, CacheLayout::kHnd),
                          .out = out_,
                          .out_stride = kDim};
  const auto bits = [&](AttentionSplit split, bool with_partials) {
    args.split = split;
    args.partials = {};
    if (with_partials) {
      args.partials = {partial.f32(), partial.f32() + 3, partial.f32() + 2 * kDim, 1};
    }
    const absl::Status status = library_.PagedAttention(args);
    EXPECT_TRUE(status.ok()) << status;
    return out_.ReadBytes();
  };
  const auto split = bits(AttentionSplit::kSplit, true);
  EXPECT_TRUE(bits(AttentionSplit::kReference, true) == split);
  EXPECT_FALSE(bits(AttentionSplit::kReference, false) == split) << "no other kernel: not tried";
}

TEST_F(CudaLibraryTest, AppendsAndMergesNameWhatIsWrong) {
  const AttentionWithKvCacheArgs append{.q = out_,
                                        .num_heads = 1,
                                        .num_seqs = 2,
                                        .num_queries = 1,
                                        .k = out_,
                                        .v = out_,
                                        .num_new = 1,
                                        .k_cache = Plane(CacheLayout::kPacked),
                                        .v_cache = PlaneIn(v_, CacheLayout::kPacked),
                                        .cache_seqlen = 3,
                                        .out = out_};
  ExpectNamed<AttentionWithKvCacheArgs>(
      &OperatorLibrary::AttentionWithKvCache, append,
      {{"k = ", [](auto& a) { a.k.data = nullptr; }},
       {"q = ", [](auto& a) { a.q.data = nullptr; }},
       {"cache_seqlen = -2", [](auto& a) { a.cache_seqlen = -2; }},
       {"cache_seqlen = 8", [](auto& a) { a.cache_seqlen = 8; }},
       {"cache_seqlen = 2147483647", [](auto& a) { a.cache_seqlen = INT32_MAX; }},
       {"num_new = 9", [](auto& a) { a.num_new = 9; }},
       {"num_rotary_positions = 3",
        [&](auto& a) {
          a.rotary_cos = a.rotary_sin = x_.f32();
          a.rotary_dim = kDim;
          a.num_rotary_positions = 3;
        }},
       {"num_seqs = 3: must be at most k_cache.num_blocks", [](auto& a) { a.num_seqs = 3; }},
       {"num_queries = ", [](auto& a) { a.num_queries = -1; }}});
  // Nothing is written beyond the capacity of 8, even if no host has looked.
  const auto before = x_.ReadBytes();
  AttentionWithKvCacheArgs full = append;
  const DeviceArray<int32_t> lengths(std::vector<int32_t>{8, 8});
  full.cache_seqlens = lengths.data();
  full.cache_seqlen = -1;
  EXPECT_TRUE(library_.AttentionWithKvCache(full).ok());
  EXPECT_TRUE(x_.ReadBytes() == before);
  full.cache_seqlens = nullptr;
  full.cache_seqlen = 7;
  EXPECT_TRUE(library_.AttentionWithKvCache(full).ok());
  EXPECT_FALSE(x_.ReadBytes() == before);

  const MergeAttentionStatesArgs merge{.out_a = x_,
                                       .lse_a = x_.f32(),
                                       .out_b = x_,
                                       .lse_b = x_.f32(),
                                       .num_tokens = 2,
                                       .num_heads = 2,
                                       .dim = 4,
                                       .out = out_};
  ExpectNamed<MergeAttentionStatesArgs>(&OperatorLibrary::MergeAttentionStates, merge,
                                        {{"lse_a = ", [](auto& a) { a.lse_a = nullptr; }},
                                         {"out = ", [](auto& a) { a.out.data = nullptr; }},
                                         {"dim = 0", [](auto& a) { a.dim = 0; }},
                                         {"out.dtype = ", [](auto& a) {
                                            a.out = {const_cast<void*>(a.out_a.data), kBF16};
                                            a.round_to = kBF16;
                                          }}});
}

TEST_F(CudaLibraryTest, OperatorsOfACacheNameWhatIsWrong) {
  const UpdateKvCacheArgs update{.append = {.key = out_,
                                            .key_stride = kDim,
                                            .value = out_,
                                            .value_stride = kDim,
                                            .slot_mapping = slots_.data(),
                                            .num_tokens = 3,
                                            .k_cache = Plane(CacheLayout::kNhd),
                                            .v_cache = PlaneIn(v_, CacheLayout::kNhd)},
                                 .num_seqs = 3,
                                 .cu_seqlens_k = starts_.data(),
                                 .block_table = zeros_.data(),
                                 .max_blocks = 1,
                                 .k_out = out_,
                                 .k_out_stride = kDim,
                                 .v_out = {out_.f32() + 8 * kDim},
                                 .v_out_stride = kDim};
  ExpectNamed<UpdateKvCacheArgs>(&OperatorLibrary::UpdateKvCache, update,
                                 {{"key = ", [](auto& a) { a.append.key.data = nullptr; }},
                                  {"cu_seqlens_k = ", [](auto& a) { a.cu_seqlens_k = nullptr; }},
                                  {"k_out = ", [](auto& a) { a.k_out.data = nullptr; }},
                                  {"v_out_stride = 15", [](auto& a) { a.v_out_stride = 15; }},
                                  {"num_seqs = 3: must be at most k_cache.num_blocks",
                                   [](auto& a) { a.block_table = nullptr; }}});
  const CachePlane plane = Plane(CacheLayout::kPacked);
  const DeviceArray<BlockPair> pair({{0, 1}});
  ExpectNamed<CopyBlocksArgs>(&OperatorLibrary::CopyBlocks, {&plane, 1, pair.data(), 1},
                              {{"pairs = ", [](auto& a) { a.pairs = nullptr; }},
                               {"num_pairs = -1", [](auto& a) { a.num_pairs = -1; }}});
  const AdvanceStepArgs advance{.num_seqs = 0, .block_size = 8};
  ExpectNamed<AdvanceStepArgs>(&OperatorLibrary::AdvanceStep, advance,
                               {{"num_seqs = -1", [](auto& a) { a.num_seqs = -1; }}});
}

}  // namespace
}  // namespace baton::cuda
