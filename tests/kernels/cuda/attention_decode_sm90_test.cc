#include "kernels/cuda/attention_decode_sm90.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/decode_fixture.h"

namespace baton::cuda {
namespace {

TEST_F(DecodeSm90Test, HasTheBitsOfTheFormForEveryGpuAtEveryLength) {
  const std::vector<int32_t> lengths = {1,   2,   0,   15,  16,  17,   63,   64,   65,  127,
                                        128, 129, 511, 512, 513, 1023, 1024, 1025, 575, 1536};
  ExpectEqualBits(Decode(32, OneQueryEach(lengths)), "f32");
  ExpectEqualBits(Decode(64, OneQueryEach({600, 1, 0, 513})), "rounded",
                  {.ragged = true, .out = DType::kBF16});
}

TEST_F(DecodeSm90Test, TakesEveryHeadSize) {
  for (const int32_t dim : {8, 40, 64, 72, 80, 96, 112, 128, 136, 192, 200, 256}) {
    ExpectEqualBits(Decode(dim, OneQueryEach({65, 17, 530})), "dim " + std::to_string(dim));
  }
}

// Whole boxes, boxes that are not whole, and blocks of more or fewer tokens than a step.
TEST_F(DecodeSm90Test, TakesBlocksOfEverySize) {
  for (const int32_t block_size : {1, 2, 8, 16, 24, 64, 100, 256}) {
    AttentionShapes shape = Decode(32, OneQueryEach({70, 513, 96, 31}));
    shape.block_size = block_size;
    ExpectEqualBits(shape, "blocks of " + std::to_string(block_size));
  }
  ExpectEqualBits(Decode(72, OneQueryEach({70, 513})), "planes with gaps", {.spread = true});
}

TEST_F(DecodeSm90Test, SharesRowsAmongHeadsAndQueries) {
  for (const auto& [heads, kv_heads] : {std::pair(1, 1), std::pair(3, 3), std::pair(3, 1),
                                        std::pair(8, 2), std::pair(7, 1), std::pair(16, 1)}) {
    AttentionShapes shape = Decode(32, OneQueryEach({100, 0, 530}));
    shape.heads = heads;
    shape.kv_heads = kv_heads;
    ExpectEqualBits(shape, std::to_string(heads) + " heads");
  }
  ExpectEqualBits(Decode(64, {{8, 600}, {1, 70}, {0, 5}, {5, 3}, {2, 0}, {7, 512}, {3, 514}}),
                  "several queries");
}

TEST_F(DecodeSm90Test, TakesEveryOptionOfTheScores) {
  std::vector<ScoreOptions> options(11);
  options[0].scale = 0.3f;
  options[1].softcap = 3;
  options[2] = {.causal = false, .window_right = 2147483647};
  options[3].window_left = 0;
  options[4].window_left = 100;
  options[5].window_left = 511;
  options[6] = {.softcap = 20, .window_left = 700, .window_right = 0};
  options[7].local_chunk = 48;
  options[8] = {.window_left = 15, .local_chunk = 700};
  for (size_t i = 0; i < options.size(); ++i) {
    AttentionShapes shape = Decode(64, {{1, 1100}, {4, 600}, {1, 512}, {1, 40}, {1, 0}});
    shape.scores = options[i];
    shape.alibi = i == 9 || i == 10;
    shape.alibi_per_sequence = i == 10;
    shape.sinks = i == 9 || i == 4 || i == 0;
    ExpectEqualBits(shape, "option " + std::to_string(i));
  }
}

// More sequences than a warp has lanes, some without keys or queries.
TEST_F(DecodeSm90Test, FindsItsPartialsAmongManySequences) {
  Lengths lengths;
  for (int32_t s = 0; s < 75; ++s) {
    lengths.emplace_back(s % 11 == 3 ? 0 : 1, s % 7 == 0 ? 0 : s == 40 ? 1030 : s * 5 % 97);
  }
  AttentionShapes shape = Decode(32, lengths);
  ExpectEqualBits(shape, "75 sequences");
  shape.sequences.assign(70, {1, 0});
  shape.sequences[66] = {1, 9};
  ExpectEqualBits(shape, "one of 70");
  shape.sequences = {{1, 0}, {0, 3}};
  ExpectEqualBits(shape, "no keys");
}

// The row of each sequence, wherever it stands and whatever stands beside it.
TEST_F(DecodeSm90Test, BitsOfASequenceDependOnNothingButIt) {
  AttentionShapes shape = Decode(64, OneQueryEach({700, 65, 512, 9}));
  shape.kv_heads = 1;
  AttentionProblem problem(shape, 5);
  const Result whole = DeviceProblem(problem).Run({.scratch = true, .counters = true});
  shape.sequences = {{1, 700}};
  AttentionProblem alone(shape, 5);  // The first sequence's values are drawn first.
  const Result first = DeviceProblem(alone).Run({.scratch = true, .counters = true});
  EXPECT_TRUE(std::equal(first.out.begin(), first.out.end(), whole.out.begin()));
}

TEST_F(DecodeSm90Test, GivesOneResultInEveryOrder) {
  AttentionProblem problem(Decode(32, {{1, 1030}, {1, 0}, {3, 70}}), 3);
  const DeviceProblem device(problem);
  const Result expected = device.Run({.scratch = true});
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    emulation::SetSeed(seed);
    ASSERT_EQ(device.Run({.scratch = true, .counters = true}), expected) << seed;
  }
}

// An item without keys has no tile for which its warps would wait for each other.
TEST_F(DecodeSm90Test, LosesNoLaneWhereItemsAreDoneAtOnce) {
  AttentionProblem problem(Decode(32, OneQueryEach({0, 0, 0, 0, 0, 3})), 3);
  const DeviceProblem device(problem);
  const Result expected = device.Run({.scratch = true});
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    emulation::SetSeed(seed);
    ASSERT_EQ(device.Run({.scratch = true, .counters = true}), expected) << seed;
  }
}

// One launch after the other with the same counters, of lengths that nobody tells the host.
TEST_F(DecodeSm90Test, AGraphServesOtherLengths) {
  AttentionProblem problem(Decode(64, OneQueryEach({1100, 64, 900, 513, 40})), 7);
  const DeviceProblem device(problem);
  for (const std::vector<int32_t>& lengths :
       {std::vector<int32_t>{513, 0, 900, 512, 1}, {0, 0, 0, 0, 0}, {1100, 64, 900, 513, 40}}) {
    const Result expected = device.Run({.scratch = true, .lengths = lengths});
    EXPECT_EQ(device.Run({.scratch = true, .counters = true, .lengths = lengths, .replays = 3}),
              expected)
        << lengths[0];
  }
}

// Rows of a block before the first that is visible are as those behind the last: NaN.
TEST_F(DecodeSm90Test, ReadsNothingBeforeAWindow) {
  for (const int32_t block_size : {16, 100}) {
    AttentionShapes shape = Decode(64, OneQueryEach({700, 37}));
    shape.block_size = block_size;
    shape.scores.window_left = 20;
    AttentionProblem problem(shape, 23);
    const Result expected = DeviceProblem(problem).Run({.scratch = true});
    const int64_t row = int64_t{shape.dim} * 2;
    for (const auto& [s, keys] : {std::pair(0, 700), std::pair(1, 37)}) {
      for (int32_t key = 0; key < keys - 21; ++key) {
        const int64_t block = problem.table[s * problem.max_blocks + key / block_size];
        if (block < 0) continue;
        for (int64_t head = block * shape.kv_heads; head < (block + 1) * shape.kv_heads; ++head) {
          const int64_t at = (head * block_size + key % block_size) * row;
          std::fill_n(problem.k_cache.begin() + at, row, std::byte{0xff});
          std::fill_n(problem.v_cache.begin() + at, row, std::byte{0xff});
        }
      }
    }
    const Result result = DeviceProblem(problem).Run({.scratch = true, .counters = true});
    EXPECT_TRUE(BytesOf(result) == BytesOf(expected)) << block_size;
  }
}

// Partials whose scores are all -inf, and a sum of them that is none.
TEST_F(DecodeSm90Test, APartialWithoutAFiniteScoreCountsForNothing) {
  AttentionShapes shape = Decode(32, OneQueryEach({1100}));
  shape.alibi = true;
  AttentionProblem problem(shape, 19);
  std::ranges::fill(problem.slopes, 1e38f);
  const DeviceProblem device(problem);
  const Result result = device.Run({.scratch = true, .counters = true});
  EXPECT_EQ(result.out, device.Run({.scratch = true}).out);
  for (const float x : result.out) ASSERT_TRUE(std::isfinite(x));
}

// A call that this form computes, to be changed; nothing of it is in the device's memory.
TEST_F(DecodeSm90Test, IsForFewRowsOnSm90) {
  const auto takes = [](auto change) {
    float scratch[1];
    uint32_t counters[3];
    AttentionRoom room{.counters = counters};
    attention::Problem problem{.q = {nullptr, DType::kBF16},
                               .num_heads = 16,
                               .num_seqs = 3,
                               .max_query_len = 1,
                               .k_cache = {.dtype = DType::kBF16, .num_blocks = 1, .num_heads = 1},
                               .scratch = scratch};
    change(problem, room);
    return IsDecodeOfSm90(problem, room);
  };
  EXPECT_TRUE(takes([](auto&, auto&) {}));
  EXPECT_TRUE(takes([](auto& p, auto&) { p.num_heads = 8, p.max_query_len = 2; }));
  EXPECT_FALSE(takes([](auto& p, auto&) { p.num_heads = 17; }));
  EXPECT_FALSE(takes([](auto& p, auto&) { p.max_query_len = 2; }));
  EXPECT_FALSE(takes([](auto& p, auto&) { p.k_cache.dtype = DType::kF16; }));
  EXPECT_FALSE(takes([](auto& p, auto&) { p.k_cache.num_blocks = 0; }));
  EXPECT_FALSE(takes([](auto& p, auto&) { p.scratch = nullptr; }));
  EXPECT_FALSE(takes([](auto& p, auto&) { p.num_seqs = 4; }));
  EXPECT_FALSE(takes([](auto&, auto& room) { room.counters = {}; }));
#if !defined(BATON_CUDA_DEVICE)
  for (const std::string_view gpu : {"sm80", "sm100", "sm120"}) {
    emulation::SetGpu(gpu);
    EXPECT_FALSE(takes([](auto&, auto&) {})) << gpu;
  }
  emulation::SetGpu("sm90");
#endif
}

}  // namespace
}  // namespace baton::cuda
