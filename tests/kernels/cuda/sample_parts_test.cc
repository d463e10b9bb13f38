#include <cfloat>
#include <memory>
#include <vector>

#include "tests/kernels/cuda/sample_fixture.h"

namespace baton::cuda {
namespace {

using SamplePartsTest = SampleTest;

struct PartsCase {
  int32_t vocab_size;
  int parts;
  int rows;
};
class PartsRandomTest : public SampleTest, public testing::WithParamInterface<PartsCase> {};

TEST_P(PartsRandomTest, EqualsTheCpuBitByBit) {
  Random random(static_cast<uint64_t>(GetParam().vocab_size));
  parts_ = GetParam().parts;
  for (int done = 0; done < GetParam().rows && !HasFailure(); done += 10) {
    emulation::SetSeed(random.Next());
    std::vector<SampleProblem> problems;
    for (int i = 0; i < 10; ++i) problems.push_back(RandomProblem(random, GetParam().vocab_size));
    ExpectAsTheCpu(problems);
  }
}
INSTANTIATE_TEST_SUITE_P(
    , PartsRandomTest,
    testing::ValuesIn(std::vector<PartsCase>{
        {1, 1, 10}, {127, 3, 50}, {512, 2, 50}, {1000, 4, 50}, {4133, 32, 10}, {8192, 1, 20}}),
    [](const auto& info) {
      return std::to_string(info.param.vocab_size) + "In" + std::to_string(info.param.parts);
    });

// As many tokens as a list has room for are alike, or one more.
TEST_F(SamplePartsTest, AListThatIsFullAndOneThatOverflows) {
  parts_ = 3;
  for (const size_t alike : {1023, 1024, 1025}) {
    std::vector<float> logits = RandomFloats(5, 1500);
    for (float& x : logits) x -= 10;
    for (size_t i = 0; i < alike; ++i) logits[(i * 7) % logits.size()] = 1;
    std::vector<SampleProblem> problems;
    for (const int32_t top_k : {0, 1, 500, 1023, 1024, 1025}) {
      for (const float top_p : {0.3f, 1.0f}) {
        problems.push_back({logits, {.top_k = top_k, .top_p = top_p}});
        problems.back().position = top_k;
      }
    }
    ExpectAsTheCpu(problems);
  }
}

// Logits farther from the likeliest than digits reach, and temperatures at which they still count.
TEST_F(SamplePartsTest, FarBelowTheLikeliest) {
  parts_ = 2;
  std::vector<SampleProblem> problems;
  for (const float width : {60.0f, 64.0f, 70.0f, 1e4f, 3e38f}) {
    for (const float temperature : {1.0f, 50.0f, 1e4f, FLT_MAX, 1e-40f}) {
      for (const int32_t top_k : {0, 3, 200}) {
        SampleProblem problem{RandomFloats(6, 300), {.temperature = temperature, .top_k = top_k}};
        for (float& x : problem.logits) x = x * 0.1f - width;
        for (size_t i = 0; i < 150; ++i) problem.logits[2 * i] += width;
        problem.logits[5] = width;
        problem.params.top_p = 0.999f;
        problem.position = static_cast<int32_t>(problems.size());
        problems.push_back(problem);
      }
    }
  }
  ExpectAsTheCpu(problems);
}

// Differences of logits that only a temperature like theirs shows.
TEST_F(SamplePartsTest, NumbersBelowTheNormalOnes) {
  parts_ = 2;
  std::vector<SampleProblem> problems;
  for (const float temperature : {1e-40f, 1e-44f, 1e-38f}) {
    for (const int32_t top_k : {0, 0, 20}) {
      SampleProblem problem{RandomFloats(9, 300), {.temperature = temperature, .top_k = top_k}};
      for (float& x : problem.logits) x *= 1e-43f;
      problem.params.top_p = top_k == 0 && problems.size() % 3 == 0 ? 1.0f : 0.9f;
      problem.position = static_cast<int32_t>(problems.size());
      problems.push_back(problem);
    }
  }
  ExpectAsTheCpu(problems);
}

TEST_F(SamplePartsTest, LongRowsAreDividedWhereThereIsScratchMemory) {
  Random random(8);
  for (const size_t rows : {1, 5}) {
    std::vector<SampleProblem> problems;
    for (size_t i = 0; i < rows; ++i) problems.push_back(RandomProblem(random, 9000));
    for (const size_t missing : {0, 8}) {
      scratch_ = std::make_unique<DeviceBytes>(std::vector<std::byte>(
          static_cast<size_t>(SampleScratchBytes({.num_rows = static_cast<int64_t>(rows)})) -
              missing,
          std::byte{0x5a}));
      ExpectAsTheCpu(problems);
      const std::vector<std::byte> after = scratch_->Read();
      const bool divided =
          std::ranges::any_of(after, [](std::byte b) { return b != std::byte{0x5a}; });
      EXPECT_EQ(divided, missing == 0);
    }
  }
}

}  // namespace
}  // namespace baton::cuda
