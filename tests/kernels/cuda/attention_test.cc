#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/kernels/cuda/device_attention.h"

namespace baton::cuda {
namespace {

void ExpectAccurate(const AttentionShapes& shape, uint64_t seed, const std::string& what,
                    bool scratch = false) {
  emulation::SetSeed(seed);
  AttentionProblem problem(shape, seed);
  const DeviceProblem device(problem);
  const Result result = device.Run({.scratch = scratch, .out = shape.compute});
  problem.Check(result.out, result.lse, 1 << 30, what);
}

class AttentionTest : public DeviceTest, public testing::WithParamInterface<Types> {};

// Each head size, also such that run in a larger kernel; lengths around steps of 64 and blocks.
TEST_P(AttentionTest, IsAccurateForEveryHeadSize) {
  for (const int32_t dim : {8, 72, 88, 104, 160, 224, 248}) {
    ExpectAccurate(Shape(GetParam(), dim, {{1, 65}, {5, 3}, {3, 4}}), 50 + dim,
                   "dim " + std::to_string(dim));
  }
  for (const int32_t dim : {32, 40, 64, 80, 96, 112, 120, 128, 136, 192, 256}) {
    ExpectAccurate(Shape(GetParam(), dim, {{3, 65}, {1, 17}, {0, 5}, {2, 0}, {33, 64}}), 1 + dim,
                   "dim " + std::to_string(dim));
  }
}

TEST_P(AttentionTest, IsAccurateAcrossPartialsAndWithinBlocksOfAnySize) {
  uint64_t seed = 100;
  for (const int32_t block_size : {1, 8, 16, 24, 32, 64, 100, 128, 256}) {
    AttentionShapes shape = Shape(GetParam(), 64, {{1, 511}, {1, 512}, {2, 513}, {1, 1030}});
    shape.block_size = block_size;
    ExpectAccurate(shape, ++seed, "blocks of " + std::to_string(block_size));
  }
}

TEST_P(AttentionTest, TakesEveryOptionOfTheScores) {
  const auto sequences = std::vector<std::pair<int32_t, int32_t>>{{70, 200}, {1, 600}, {5, 9}};
  std::vector<ScoreOptions> options(12);
  options[1].scale = 0.3f;
  options[2].softcap = 3;
  options[3].causal = false;
  options[4].window_left = 15;
  options[5].window_left = 0;
  options[6] = {.causal = false, .window_left = 20, .window_right = 7};
  options[7] = {.causal = false, .window_right = 2147483647};
  options[8].local_chunk = 48;
  options[11] = {.window_left = 15, .local_chunk = 48};
  options[9] = {.softcap = 20, .window_left = 511, .window_right = 0};
  for (size_t i = 0; i < options.size(); ++i) {
    AttentionShapes shape = Shape(GetParam(), 64, sequences);
    shape.scores = options[i];
    shape.alibi = i == 10 || i == 3;
    shape.alibi_per_sequence = i == 10;
    shape.sinks = i == 9 || i == 4 || i == 0;
    ExpectAccurate(shape, 200 + i, "option " + std::to_string(i));
  }
}

// Blocks of two warps and of one, and those whose totals are in shared memory.
TEST_P(AttentionTest, TakesEveryOptionOfTheScoresInLargeHeads) {
  std::vector<ScoreOptions> options(3);
  options[0] = {.scale = 0.3f, .softcap = 3, .window_left = 15};
  options[1] = {.causal = false, .window_left = 20, .window_right = 7};
  options[2].local_chunk = 48;
  for (const int32_t dim : {192, 256}) {
    for (size_t i = 0; i < options.size(); ++i) {
      AttentionShapes shape = Shape(GetParam(), dim, {{18, 70}, {1, 65}});
      shape.scores = options[i];
      shape.alibi = i == 1;
      shape.sinks = i == 0;
      const std::string what = std::to_string(dim) + " option " + std::to_string(i);
      AttentionProblem problem(shape, 500 + i);
      const DeviceProblem device(problem);
      const Result four_warps = device.Run({.out = shape.compute});
      problem.Check(four_warps.out, four_warps.lse, 1 << 30, what);
      EXPECT_EQ(device.Run({.out = shape.compute, .shared_bytes = kLeastSharedBytes}), four_warps)
          << what;
    }
  }
}

// Sequences that end, and windows that begin, at and beside the ends of steps and partials.
TEST_P(AttentionTest, IsAccurateWherePartialsAreFolded) {
  std::vector<ScoreOptions> options(7);
  options[1].window_left = 100;
  options[2].window_left = 511;  // From the first key of a partial on, for all but two.
  options[3].local_chunk = 700;
  options[4] = {.causal = false, .window_left = 700, .window_right = 0};
  options[5].softcap = 3;
  options[6] = {.causal = false, .window_right = 9};
  for (size_t i = 0; i < options.size(); ++i) {
    AttentionShapes shape = Shape(GetParam(), 32,
                                  {{1, 1025}, {1, 512}, {1, 1023}, {1, 63}, {2, 1024}, {1, 513},
                                   {1, 127}, {1, 511}, {1, 1536}, {1, 129}, {3, 1}, {1, 128}});
    shape.heads = shape.kv_heads = 2;
    shape.scores = options[i];
    shape.sinks = i == 1;
    ExpectAccurate(shape, 400 + i, "option " + std::to_string(i), true);
  }
}

TEST_P(AttentionTest, SharesTheRowsOfATileAmongHeads) {
  for (const auto& [heads, kv_heads] : {std::pair(1, 1), std::pair(9, 3), std::pair(6, 1),
                                        std::pair(7, 7), std::pair(70, 1), std::pair(8, 2)}) {
    AttentionShapes shape = Shape(GetParam(), 32, {{1, 100}, {11, 70}, {25, 25}});
    shape.heads = heads;
    shape.kv_heads = kv_heads;
    ExpectAccurate(shape, 300 + heads, std::to_string(heads) + " heads");
  }
}

// Rows of queries [first, first + n) of sequence `s` of a result.
Result RowsOf(const AttentionProblem& problem, const Result& all, size_t s, int64_t first,
              int64_t n) {
  const int64_t width = int64_t{problem.shape.heads} * problem.shape.v_dim;
  const int64_t token = problem.cu_q[s] + first;
  Result rows{{all.out.begin() + token * width, all.out.begin() + (token + n) * width}, {}};
  for (int64_t h = 0; h < problem.shape.heads; ++h) {
    const auto from = all.lse.begin() + h * problem.total_q + token;
    rows.lse.insert(rows.lse.end(), from, from + n);
  }
  return rows;
}

// Changes the queries that a problem asks, but neither K and V nor positions: the last `n` of the
// first n + skipped of sequence 0.
Result AskLast(AttentionProblem& problem, const std::vector<float>& q, int64_t first, int64_t n,
               int32_t keys, const RunOptions& options) {
  const int64_t width = int64_t{problem.shape.heads} * problem.shape.dim;
  problem.q.assign(q.begin() + first * width, q.begin() + (first + n) * width);
  problem.total_q = n;
  problem.cu_q = {0, static_cast<int32_t>(n)};
  problem.seq_lens = {keys};
  problem.shape.sequences = {{static_cast<int32_t>(n), keys}};
  return DeviceProblem(problem).Run(options);
}

// A prompt in one step, in chunks, and token by token, with each partial in a block of its own or
// all in one: the same bits.
TEST_P(AttentionTest, BitsDependOnNeitherChunksNorPartialsNorTiles) {
  constexpr int32_t kQueries = 70, kKeys = 1100;
  for (const auto& [dim, window] : {std::pair(64, -1), std::pair(192, 700)}) {
    AttentionShapes shape = Shape(GetParam(), dim, {{kQueries, kKeys}});
    shape.scores.window_left = window;
    shape.sinks = window < 0;
    const AttentionProblem original(shape, 7);
    AttentionProblem problem(shape, 7);
    const Result whole = DeviceProblem(problem).Run();
    for (const auto& [first, n] : {std::pair(0, 1), std::pair(69, 1), std::pair(37, 1),
                                   std::pair(0, 32), std::pair(32, 38), std::pair(13, 2)}) {
      const Result expected = RowsOf(original, whole, 0, first, n);
      for (const bool scratch : {false, true}) {
        EXPECT_EQ(AskLast(problem, original.q, first, n, kKeys - kQueries + first + n,
                          {.scratch = scratch}),
                  expected)
            << "dim " << dim << " queries " << first << "+" << n << (scratch ? " split" : "");
      }
    }
  }
}

// Blocks of fewer warps, where there is not the room for four.
TEST_P(AttentionTest, BitsDoNotDependOnTheSharedMemoryOfABlock) {
  for (const int32_t dim : {128, 136, 192, 200, 256}) {
    AttentionShapes shape = Shape(GetParam(), dim, {{1, 530}, {40, 90}, {1, 64}, {9, 9}});
    AttentionProblem problem(shape, 21);
    const DeviceProblem device(problem);
    const Result expected = device.Run();
    emulation::SetGpu("sm120");  // Refuses a launch of more than it gives.
    for (const bool scratch : {false, true}) {
      EXPECT_EQ(device.Run({.scratch = scratch, .shared_bytes = kLeastSharedBytes}), expected)
          << "dim " << dim << (scratch ? " split" : "");
    }
    emulation::SetGpu("sm90");
  }
}

TEST_P(AttentionTest, BitsDependOnNeitherBatchNorBlocks) {
  const auto sequences = std::vector<std::pair<int32_t, int32_t>>{{1, 530}, {40, 90}, {1, 64}};
  AttentionShapes shape = Shape(GetParam(), 128, sequences);
  AttentionProblem problem(shape, 9);
  const Result whole = DeviceProblem(problem).Run();
  for (const int32_t block_size : {8, 64}) {
    AttentionShapes other = shape;
    other.block_size = block_size;
    AttentionProblem same(other, 9);
    EXPECT_EQ(DeviceProblem(same).Run(), whole) << block_size;
    EXPECT_EQ(DeviceProblem(same).Run({.ragged = true}), whole) << block_size;
  }
  // Sequence 0 alone has the same values: they are drawn in order.
  AttentionShapes alone = shape;
  alone.sequences = {sequences[0]};
  AttentionProblem first(alone, 9);
  EXPECT_EQ(DeviceProblem(first).Run({.scratch = true}), RowsOf(problem, whole, 0, 0, 1));
}

TEST_P(AttentionTest, LeavesGapsOfStridesAlone) {
  AttentionShapes shape = Shape(GetParam(), 64, {{5, 70}, {1, 33}});
  shape.row_gap = 8;
  ExpectAccurate(shape, 11, "gaps");
  shape.row_gap = 0;
  AttentionProblem problem(shape, 12);
  const DeviceProblem device(problem);
  EXPECT_EQ(device.Run({.spread = true}), device.Run());
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionTest, testing::ValuesIn(kTypes), [](const auto& info) {
  return std::string(ToString(info.param.compute)) + "_cache_" +
         std::string(ToString(info.param.kv));
});

using AttentionOfDeviceTest = DeviceTest;

#if !defined(BATON_CUDA_DEVICE)
// And more warps, which are faster, wherever there is.
TEST_F(AttentionOfDeviceTest, BlocksAreAsLargeAsTheirRoomAllows) {
  const auto blocks = [](int32_t dim, size_t shared_bytes) {
    AttentionShapes shape = Shape(kTypes[0], dim, {{64, 64}});
    shape.heads = shape.kv_heads = 1;
    AttentionProblem problem(shape, 23);
    const DeviceProblem device(problem);
    const int64_t before = emulation::GetStatistics().blocks;
    device.Run({.shared_bytes = shared_bytes, .form = MmaVarlenAttention});
    return emulation::GetStatistics().blocks - before;
  };
  constexpr size_t kSm80 = 163 << 10;
  EXPECT_EQ(blocks(128, kLeastSharedBytes), 1);
  EXPECT_EQ(blocks(192, kSm80), 1);
  EXPECT_EQ(blocks(192, kLeastSharedBytes), 2);
  EXPECT_EQ(blocks(256, kSm80), 1);
  EXPECT_EQ(blocks(256, kLeastSharedBytes), 4);
}

// A step of decode has a block for each partial of a head, and one to fold each row; rows of more
// than one tile fill a device without.
TEST_F(AttentionOfDeviceTest, OneTileOfRowsIsSplit) {
  const auto blocks = [](int32_t queries, bool scratch) {
    AttentionShapes shape = Shape(kTypes[0], 32, {{queries, 1025}});
    shape.heads = shape.kv_heads = 1;
    AttentionProblem problem(shape, 29);
    const DeviceProblem device(problem);
    const int64_t before = emulation::GetStatistics().blocks;
    device.Run({.scratch = scratch, .form = MmaVarlenAttention});
    return emulation::GetStatistics().blocks - before;
  };
  EXPECT_EQ(blocks(1, true), 3 + 1);
  EXPECT_EQ(blocks(1, false), 1);
  EXPECT_EQ(blocks(65, true), 2);
}
#endif

// What the real kernels do in any order of threads, blocks and copies is never called a fault.
TEST_F(AttentionOfDeviceTest, GivesOneResultInEveryOrder) {
  AttentionProblem problem(Shape(kTypes[0], 32, {{1, 600}, {3, 70}}), 3);
  const DeviceProblem device(problem);
  const Result expected = device.Run();
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    emulation::SetSeed(seed);
    ASSERT_EQ(device.Run({.scratch = seed % 2 == 0}), expected) << seed;
  }
}

// An early query that sees far keys by ALiBi: the first partial's maximum is above the last one's
// by more than the exponents of a float, either of which may be the one that a fold keeps.
TEST_F(AttentionOfDeviceTest, FoldsPartialsWhoseMaximaAreFarApart) {
  AttentionShapes shape = Shape(kTypes[0], 32, {{560, 1100}});
  shape.kv_heads = 1;
  shape.scores.causal = false;
  shape.alibi = true;
  AttentionProblem problem(shape, 13);
  const Result result = DeviceProblem(problem).Run({.out = shape.compute});
  problem.Check(result.out, result.lse, 300, "far apart");
}

// The scratch memory is that of the queries there are, not of the longest row of each sequence.
TEST_F(AttentionOfDeviceTest, RaggedQueriesFoldTheirPartialsToTheSameBits) {
  AttentionProblem problem(Shape(kTypes[0], 64, {{4, 1100}, {1, 700}, {1, 0}, {2, 600}}), 17);
  const std::vector<float> whole = DeviceProblem(problem).Run().out;
  EXPECT_EQ(DeviceProblem(problem).Run({.scratch = true}).out, whole);
}

// Slopes so steep that all keys but the last few have a score of -inf.
TEST_F(AttentionOfDeviceTest, APartialWithoutAFiniteScoreCountsForNothing) {
  AttentionShapes shape = Shape(kTypes[0], 32, {{1, 1100}});
  shape.alibi = true;
  AttentionProblem problem(shape, 19);
  std::ranges::fill(problem.slopes, 1e38f);
  const std::vector<float> whole = DeviceProblem(problem).Run().out;
  for (const float x : whole) ASSERT_TRUE(std::isfinite(x));
  EXPECT_EQ(DeviceProblem(problem).Run({.scratch = true}).out, whole);
}

// A call of either operator that is allowed, to be spoilt.
class AttentionRefusalTest : public DeviceTest {
 protected:
  VarlenAttentionArgs Varlen() {
    VarlenAttentionArgs args = problem_.Args(nullptr);
    args.q = q_;
    args.cu_seqlens_q = cu_q_.data();
    args.num_tokens = 2;
    args.max_seqlen_q = 1;
    args.seq_lens = lens_.data();
    args.max_seqlen_k = 700;
    args.block_table = table_.data();
    args.k_cache.data = static_cast<std::byte*>(k_.data());
    args.v_cache.data = static_cast<std::byte*>(v_.data());
    args.round_to = DType::kF32;
    args.out = out_;
    args.lse = nullptr;
    return args;
  }
  PagedAttentionArgs Paged() {
    const VarlenAttentionArgs args = Varlen();
    return {.q = args.q,
            .q_stride = args.q_stride,
            .num_heads = args.num_heads,
            .num_seqs = args.num_seqs,
            .block_tables = args.block_table,
            .max_blocks = args.max_blocks,
            .seq_lens = args.seq_lens,
            .max_seq_len = args.max_seqlen_k,
            .k_cache = args.k_cache,
            .v_cache = args.v_cache,
            .scores = args.scores,
            .out = out_,
            .out_stride = args.out_stride};
  }
  template <typename Change>
  bool Refuses(const Change& change) {
    VarlenAttentionArgs args = Varlen();
    change(args);
    return VarlenAttention(args, {}, nullptr) == cudaErrorInvalidValue;
  }
  template <typename Change>
  bool RefusesPaged(const Change& change) {
    PagedAttentionArgs args = Paged();
    change(args);
    return PagedAttention(args, {}, nullptr) == cudaErrorInvalidValue;
  }

  AttentionProblem problem_{Shape(kTypes[0], 64, {{1, 700}, {1, 5}}), 3};
  DeviceFloats q_{DType::kBF16, problem_.q}, out_{DType::kF32, problem_.out_size()};
  DeviceBytes k_{problem_.k_cache}, v_{problem_.v_cache};
  DeviceArray<int32_t> table_{problem_.table}, lens_{problem_.seq_lens}, cu_q_{problem_.cu_q};
};

TEST_F(AttentionRefusalTest, OneQueryEachIsPagedAttention) {
  ASSERT_EQ(VarlenAttention(Varlen(), {}, nullptr), cudaSuccess);
  const std::vector<float> expected = out_.Read();
  const DeviceFloats scratch(DType::kF32, ScratchBytes(Paged()) / 4);
  for (float* memory : {static_cast<float*>(nullptr), scratch.f32()}) {
    const DeviceFloats out(DType::kF32, problem_.out_size());
    PagedAttentionArgs args = Paged();
    args.out = out;
    ASSERT_EQ(PagedAttention(args, {.scratch = memory}, nullptr), cudaSuccess);
    EXPECT_EQ(out.Read(), expected);
  }
  // A single pass leaves the scratch memory alone.
  const DeviceFloats untouched(DType::kF32, std::vector<float>(ScratchBytes(Paged()) / 4, 7));
  PagedAttentionArgs args = Paged();
  args.split = AttentionSplit::kSinglePass;
  ASSERT_EQ(PagedAttention(args, {.scratch = untouched.f32()}, nullptr), cudaSuccess);
  for (const float x : untouched.Read()) ASSERT_EQ(x, 7);
}

TEST_F(AttentionRefusalTest, RefusesWhatTheKernelsDoNotServe) {
  EXPECT_FALSE(Refuses([](auto&) {}));
  EXPECT_TRUE(Refuses([](auto& a) { a.q.dtype = DType::kF32; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.scales.output_scale = 2; }));
  EXPECT_TRUE(RefusesPaged([](auto& a) { a.scales.output_scale = 2; }));
  EXPECT_TRUE(RefusesPaged([](auto& a) { a.partials.max_num_partitions = 2; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.num_heads = 3; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.k_cache.dim = a.v_cache.dim = 60; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.k_cache.dim = a.v_cache.dim = 264; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.v_cache.dim = 32; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.k_cache.layout = CacheLayout::kNhd; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.v_cache.layout = CacheLayout::kPacked; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.k_cache.dtype = DType::kF16; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.v_cache.dtype = DType::kFp8E4M3; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.k_cache.dtype = a.v_cache.dtype = DType::kF16; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.k_cache.block_stride += 4; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.v_cache.head_stride = 1028; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.v_cache.token_stride = 68; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.k_cache.data += 8; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.q_stride = 260; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.q = a.q.At(1); }));
  EXPECT_TRUE(Refuses([](auto& a) { a.out.dtype = a.round_to = DType::kF16; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.round_to = DType::kBF16; }));
  const int32_t dense[] = {0, 1, 2};
  EXPECT_TRUE(Refuses([&](auto& a) { a.dense.cu_seqlens_k = dense; }));
  // What the host cannot read.
  EXPECT_TRUE(Refuses([](auto& a) { a.num_tokens = 0; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.max_seqlen_q = 0; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.max_seqlen_k = 0; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.cu_seqlens_q = nullptr; }));
  EXPECT_FALSE(RefusesPaged([](auto&) {}));
  EXPECT_TRUE(RefusesPaged([](auto& a) { a.round_to = DType::kBF16; }));
  EXPECT_TRUE(RefusesPaged([](auto& a) { a.sparsity.vert_stride = 2; }));
  EXPECT_TRUE(RefusesPaged([](auto& a) { a.q.dtype = DType::kF32; }));
  EXPECT_EQ(VarlenAttention({}, {}, nullptr), cudaSuccess);  // No sequences.
}

// 641 sequences of so many tiles are 2^32 + 1: one block would leave all others out.
TEST_F(AttentionRefusalTest, MoreTilesThanAGridHasBlocksAreRefused) {
  const DeviceArray<int32_t> zeros{std::vector<int32_t>(642)};
  VarlenAttentionArgs args = Varlen();
  args.k_cache.num_heads = args.v_cache.num_heads = args.num_heads = 1;
  args.num_seqs = 641;
  args.cu_seqlens_q = args.seq_lens = zeros.data();
  args.num_tokens = args.max_seqlen_q = 6700417 * 64;
  EXPECT_EQ(MmaVarlenAttention(args, {}, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace baton::cuda
