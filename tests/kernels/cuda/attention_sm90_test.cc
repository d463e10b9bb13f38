#include "kernels/cuda/attention_sm90.h"

#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/gemm_sm90.h"
#include "tests/kernels/cuda/device_attention.h"

namespace baton::cuda {
namespace {

using Sequences = std::vector<std::pair<int32_t, int32_t>>;

// The two forms that sm_90a has: DeviceProblem compares them, the other GPUs' being the oracle.
class AttentionSm90Test : public DeviceTest, public testing::WithParamInterface<DType> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    emulation::SetGpu("sm90");
    if (!IsSm90()) GTEST_SKIP() << "the device is no sm_90";
  }

  AttentionShapes ShapeOf(int32_t dim, Sequences sequences) const {
    return Shape({GetParam(), GetParam()}, dim, std::move(sequences));
  }
  static void ExpectEqualBits(const AttentionShapes& shape, const std::string& what,
                              const RunOptions& options = {}) {
    SCOPED_TRACE(what);
    AttentionProblem problem(shape, 31);
    const DeviceProblem device(problem);
    ASSERT_TRUE(device.IsTakenOnSm90(options));
    emulation::SetSeed(shape.sequences[0].second);
    device.Run(options);
  }
};

// Heads of both kinds of blocks, and such as end amid the columns of a form; one warpgroup and two.
TEST_P(AttentionSm90Test, HasTheBitsOfTheFormForEveryGpuForEveryHeadSize) {
  for (const int32_t dim : {8, 64, 72, 96, 128, 136, 256}) {
    ExpectEqualBits(ShapeOf(dim, {{33, 70}, {1, 17}, {0, 5}, {2, 0}, {32, 32}}),
                    "dim " + std::to_string(dim),
                    {.out = dim % 16 == 0 ? DType::kF32 : GetParam()});
  }
}

// Sequences that end around steps, tiles of rows, blocks and partials, with more steps than stages.
TEST_P(AttentionSm90Test, HasTheBitsOfTheFormForEveryGpuAtEveryEnd) {
  AttentionShapes shape =
      ShapeOf(64, {{63, 63}, {64, 65}, {65, 127}, {1, 511}, {2, 513}, {1, 512}});
  ExpectEqualBits(shape, "ends", {.ragged = true});
  shape.kv_heads = shape.heads = 1;
  shape.sequences = {{3, 1025}, {129, 129}, {128, 1}};
  ExpectEqualBits(shape, "partials");
}

TEST_P(AttentionSm90Test, TakesEveryOptionOfTheScores) {
  std::vector<ScoreOptions> options(7);
  options[0] = {.scale = 0.3f, .softcap = 3};
  options[1] = {.causal = false, .window_left = 20, .window_right = 7};
  options[2].window_left = 15;
  options[3].window_left = 0;
  options[4].window_left = 511;
  options[5].local_chunk = 48;
  options[6].causal = false;
  for (size_t i = 0; i < options.size(); ++i) {
    AttentionShapes shape = ShapeOf(i % 2 == 0 ? 64 : 136, {{40, 110}, {1, 600}, {5, 9}});
    shape.scores = options[i];
    shape.alibi = shape.alibi_per_sequence = i == 1 || i == 6;
    shape.sinks = i < 3;
    ExpectEqualBits(shape, "option " + std::to_string(i));
  }
}

// Groups that fill a tile of rows, and such that leave some of it.
TEST_P(AttentionSm90Test, SharesTheRowsOfATileAmongHeads) {
  for (const auto& [heads, kv_heads] :
       {std::pair(1, 1), std::pair(3, 1), std::pair(10, 2), std::pair(7, 1), std::pair(64, 1)}) {
    AttentionShapes shape = ShapeOf(heads == 7 ? 256 : 64, {{1, 70}, {23, 40}});
    shape.heads = heads;
    shape.kv_heads = kv_heads;
    ExpectEqualBits(shape, std::to_string(heads) + " heads");
  }
}

// Blocks smaller and larger than a step, and such that steps end amid them.
TEST_P(AttentionSm90Test, TakesBlocksOfEveryMultipleOfEight) {
  for (const int32_t block_size : {8, 24, 32, 64, 72, 128}) {
    AttentionShapes shape = ShapeOf(64, {{3, 166}, {1, 64}});
    shape.block_size = block_size;
    shape.scores.window_left = 99;
    ExpectEqualBits(shape, "blocks of " + std::to_string(block_size));
  }
  ExpectEqualBits(ShapeOf(128, {{5, 70}, {1, 33}}), "planes with gaps", {.spread = true});
}

// A prompt among answers: more sequences than lanes of a warp, and no block for each tile that only
// the longest has.
TEST_P(AttentionSm90Test, ShortSequencesBesideALongOneTakeABlockForEachHead) {
  Sequences sequences(40, {1, 9});
  sequences[35] = {150, 200};
  sequences[7] = {0, 3};
  const AttentionShapes shape = ShapeOf(64, sequences);
  ExpectEqualBits(shape, "a long one");
#if !defined(BATON_CUDA_DEVICE)
  AttentionProblem problem(shape, 31);
  const DeviceProblem device(problem);
  const int64_t before = emulation::GetStatistics().blocks;
  device.Run({.form = VarlenAttention});
  // Of 64 queries, by the two heads that share one of K and V.
  EXPECT_EQ(emulation::GetStatistics().blocks - before, 2 * ((38 + 150) / 64 + 40));
#endif
}

TEST_P(AttentionSm90Test, GivesOneResultInEveryOrder) {
  AttentionShapes shape = ShapeOf(64, {{70, 300}});
  shape.heads = shape.kv_heads = 1;
  AttentionProblem problem(shape, 3);
  const DeviceProblem device(problem);
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    emulation::SetSeed(seed);
    device.Run();
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionSm90Test, testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(ToString(info.param)); });

class AttentionSm90ChoiceTest : public DeviceTest {
 protected:
  static VarlenAttentionArgs Args() {
    static AttentionProblem problem(Shape(kTypes[0], 64, {{40, 40}}), 3);
    static const DeviceFloats q(DType::kBF16, problem.q);
    static const DeviceBytes cache(problem.k_cache);
    VarlenAttentionArgs args = problem.Args(nullptr);
    args.q = q;
    args.num_tokens = args.max_seqlen_q = args.max_seqlen_k = 40;
    args.k_cache.data = args.v_cache.data = static_cast<std::byte*>(cache.data());
    args.out.dtype = args.round_to = DType::kF32;
    return args;
  }
  template <typename Change>
  static bool Takes(const Change& change) {
    VarlenAttentionArgs args = Args();
    change(args);
    return AttentionSm90Takes(args);
  }
};

TEST_F(AttentionSm90ChoiceTest, TakesWhatTensorCopiesCanLoad) {
  EXPECT_TRUE(Takes([](auto&) {}));
  EXPECT_TRUE(Takes([](auto& a) { a.k_cache.block_size = a.v_cache.block_size = 8; }));
  EXPECT_FALSE(Takes([](auto& a) { a.k_cache.block_size = a.v_cache.block_size = 4; }));
  EXPECT_FALSE(Takes([](auto& a) { a.k_cache.block_size = 8; }));
  EXPECT_FALSE(Takes([](auto& a) { a.k_cache.dtype = a.v_cache.dtype = DType::kFp8E4M3; }));
  EXPECT_TRUE(Takes([](auto& a) { a.num_heads = 64 * a.k_cache.num_heads; }));
  EXPECT_FALSE(Takes([](auto& a) { a.num_heads = 65 * a.k_cache.num_heads; }));
  EXPECT_FALSE(Takes([](auto& a) { a.q = a.q.At(1); }));
  EXPECT_FALSE(Takes([](auto& a) { a.k_cache.num_blocks = 0; }));
  EXPECT_FALSE(Takes([](auto& a) { a.max_seqlen_k = 0; }));
  EXPECT_FALSE(Takes([](auto& a) { a.num_seqs = 0; }));
}

TEST_F(AttentionSm90ChoiceTest, PaysForMoreRowsThanTheOtherFormsBlockAndLargerHeads) {
  const auto pays = [](int32_t queries, int32_t dim) {
    VarlenAttentionArgs args = Args();
    args.num_heads = 2 * args.k_cache.num_heads;
    args.max_seqlen_q = queries;
    args.k_cache.dim = args.v_cache.dim = dim;
    return AttentionSm90Pays(args);
  };
  EXPECT_TRUE(pays(33, 64));
  EXPECT_FALSE(pays(32, 64));
  EXPECT_TRUE(pays(33, 40));
  EXPECT_FALSE(pays(33, 32));
}

#if !defined(BATON_CUDA_DEVICE)
// Prompts on sm_90 take it: its blocks have twice the rows. Nothing else does.
TEST_F(AttentionSm90ChoiceTest, IsForPromptsOnSm90) {
  const auto blocks = [](std::string_view gpu, int32_t queries) {
    emulation::SetGpu(gpu);
    AttentionShapes shape = Shape(kTypes[0], 64, {{queries, queries}});
    shape.heads = shape.kv_heads = 1;
    AttentionProblem problem(shape, 5);
    const DeviceProblem device(problem);
    const int64_t before = emulation::GetStatistics().blocks;
    device.Run({.form = VarlenAttention});
    emulation::SetGpu("sm90");
    return emulation::GetStatistics().blocks - before;
  };
  EXPECT_EQ(blocks("sm90", 65), 1);
  EXPECT_EQ(blocks("sm90", 64), 1);
  EXPECT_EQ(blocks("sm80", 65), 2);
  EXPECT_EQ(blocks("sm100", 65), 2);
}
#endif

}  // namespace
}  // namespace baton::cuda
