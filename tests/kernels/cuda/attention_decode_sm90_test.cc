#include "kernels/cuda/attention_decode_sm90.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/gemm_sm90.h"
#include "tests/kernels/cuda/device_attention.h"

namespace baton::cuda {
namespace {

using Lengths = std::vector<std::pair<int32_t, int32_t>>;  // (queries, keys)

std::vector<std::byte> BytesOf(const Result& result) {
  std::vector<std::byte> bytes((result.out.size() + result.lse.size()) * sizeof(float));
  std::memcpy(bytes.data(), result.out.data(), result.out.size() * sizeof(float));
  std::memcpy(bytes.data() + result.out.size() * sizeof(float), result.lse.data(),
              result.lse.size() * sizeof(float));
  return bytes;
}

// All blocks so far, and those of a launch of this form.
#if defined(BATON_CUDA_DEVICE)
int64_t Blocks() { return 0; }
constexpr int64_t kBlocks = 0;
#else
int64_t Blocks() { return emulation::GetStatistics().blocks; }
constexpr int64_t kBlocks = 6;
#endif

Lengths OneQueryEach(const std::vector<int32_t>& keys) {
  Lengths lengths;
  for (const int32_t n : keys) lengths.emplace_back(1, n);
  return lengths;
}

// The form of every GPU is the oracle of the one that sm_90a has.
class DecodeSm90Test : public DeviceTest, public testing::WithParamInterface<Types> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    emulation::SetGpu("sm90");
    if (!IsSm90()) GTEST_SKIP() << "the device is no sm_90";
  }

  AttentionShapes Decode(int32_t dim, Lengths lengths) const {
    return Shape(GetParam(), dim, std::move(lengths));
  }

  static void ExpectEqualBits(const AttentionShapes& shape, const std::string& what,
                              RunOptions options = {}) {
    SCOPED_TRACE(what);
    AttentionProblem problem(shape, 31);
    const DeviceProblem device(problem);
    options.scratch = true;
    options.out = options.out == DType::kF32 ? DType::kF32 : shape.compute;
    const Result expected = device.Run(options);
    options.counters = true;
    const int64_t blocks = Blocks();
    EXPECT_TRUE(BytesOf(device.Run(options)) == BytesOf(expected));
    EXPECT_EQ(Blocks() - blocks, kBlocks) << "the other form has run";
  }
};

TEST_P(DecodeSm90Test, HasTheBitsOfTheFormForEveryGpuAtEveryLength) {
  const std::vector<int32_t> lengths = {1,   2,   0,   15,  16,   17,   63,   64,  65,  127, 128,
                                        129, 511, 512, 513, 1023, 1024, 1025, 575, 1536};
  ExpectEqualBits(Decode(32, OneQueryEach(lengths)), "f32");
  ExpectEqualBits(Decode(64, OneQueryEach({600, 1, 0, 513})), "rounded",
                  {.ragged = true, .out = DType::kBF16});
}

TEST_P(DecodeSm90Test, TakesEveryHeadSize) {
  for (const int32_t dim : {8, 40, 64, 72, 80, 96, 112, 128, 136, 192, 200, 256}) {
    ExpectEqualBits(Decode(dim, OneQueryEach({65, 17, 530})), "dim " + std::to_string(dim));
  }
}

// Whole boxes, boxes that are not whole, and blocks of more or fewer tokens than a step.
TEST_P(DecodeSm90Test, TakesBlocksOfEverySize) {
  for (const int32_t block_size : {1, 2, 8, 16, 24, 64, 100, 256}) {
    AttentionShapes shape = Decode(32, OneQueryEach({70, 513, 96, 31}));
    shape.block_size = block_size;
    ExpectEqualBits(shape, "blocks of " + std::to_string(block_size));
  }
  ExpectEqualBits(Decode(72, OneQueryEach({70, 513})), "planes with gaps", {.spread = true});
}

TEST_P(DecodeSm90Test, SharesRowsAmongHeadsAndQueries) {
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

TEST_P(DecodeSm90Test, TakesEveryOptionOfTheScores) {
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
TEST_P(DecodeSm90Test, FindsItsPartialsAmongManySequences) {
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

INSTANTIATE_TEST_SUITE_P(Types, DecodeSm90Test, testing::Values(kTypes[0], kTypes[1]),
                         [](const auto& info) {
                           return std::string(ToString(info.param.compute));
                         });

}  // namespace
}  // namespace baton::cuda
