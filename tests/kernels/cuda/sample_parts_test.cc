#include <memory>
#include <vector>

#include "tests/kernels/cuda/device_sampling.h"
#include "tests/kernels/sample_fixture.h"

// Rows in parts of any number; ../sample_test.cc has more of rows in three.
namespace baton::cuda {
namespace {

struct PartsCase {
  int32_t vocab_size;
  int parts;
  int rows;
};
class PartsRandomTest : public testing::TestWithParam<PartsCase>, protected Choosing {
 protected:
  PartsRandomTest() : Choosing(MakeSampleOps({.ops = "cuda", .parts = GetParam().parts})) {}
};

TEST_P(PartsRandomTest, ChoosesWhatASortChooses) {
  Random random(static_cast<uint64_t>(GetParam().vocab_size));
  for (int done = 0; done < GetParam().rows && !HasFailure(); done += 10) {
    std::vector<SampleProblem> problems;
    for (int i = 0; i < 10; ++i) problems.push_back(RandomProblem(random, GetParam().vocab_size));
    ExpectAsTheOracle(problems);
  }
}
INSTANTIATE_TEST_SUITE_P(
    , PartsRandomTest,
    testing::ValuesIn(std::vector<PartsCase>{
        {1, 1, 10}, {127, 3, 20}, {512, 2, 20}, {1000, 4, 20}, {4133, 32, 10}, {8192, 1, 20}}),
    [](const auto& info) {
      return std::to_string(info.param.vocab_size) + "In" + std::to_string(info.param.parts);
    });

using SamplePartsTest = DeviceTest;

TEST_F(SamplePartsTest, LongRowsAreDividedWhereThereIsScratchMemory) {
  Random random(8);
  for (const size_t rows : {1, 5}) {
    std::vector<SampleProblem> problems;
    for (size_t i = 0; i < rows; ++i) problems.push_back(RandomProblem(random, 9000));
    for (const size_t missing : {0, 8}) {
      const auto bytes = SampleScratchBytes({.num_rows = static_cast<int64_t>(rows)});
      const DeviceBytes scratch(
          std::vector<std::byte>(static_cast<size_t>(bytes) - missing, std::byte{0x5a}));
      Choosing(std::make_unique<DeviceSampling>(DeviceSampling::Options{.scratch = &scratch}))
          .ExpectAsTheOracle(problems);
      const std::vector<std::byte> after = scratch.Read();
      const bool divided =
          std::ranges::any_of(after, [](std::byte b) { return b != std::byte{0x5a}; });
      EXPECT_EQ(divided, missing == 0);
    }
  }
}

}  // namespace
}  // namespace baton::cuda
