#include "kernels/cuda/norms.h"

#include <utility>

#include "tests/kernels/cuda/device_fixture.h"

// What they compute: tests/kernels/norms_test.cc, for all devices.
namespace baton::cuda {
namespace {

TEST(OperandsTest, RoundsToTheTypeOfTheOutputAndNoOther) {
  float x[4];
  EXPECT_EQ(RmsNorm({.x = x, .num_tokens = 1, .dim = 1, .round_to = DType::kBF16, .out = x},
                    nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(LayerNorm({.x = x, .num_tokens = 1, .dim = 1, .round_to = DType::kBF16, .out = x},
                      nullptr),
            cudaErrorInvalidValue);
}

TEST(OperandsTest, RefusesTwoHalfTypesAndFp8) {
  for (const auto& [in, out] : {std::pair(DType::kBF16, DType::kF16),
                               std::pair(DType::kF32, DType::kFp8E4M3),
                               std::pair(DType::kFp8E5M2, DType::kF32)}) {
    EXPECT_EQ(RmsNorm({.x = {nullptr, in},
                       .num_tokens = 1,
                       .dim = 1,
                       .round_to = out,
                       .out = {nullptr, out}},
                      nullptr),
              cudaErrorInvalidValue);
  }
}

}  // namespace
}  // namespace baton::cuda
