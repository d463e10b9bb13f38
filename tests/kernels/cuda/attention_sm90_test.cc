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

// The two forms that sm_90a has; the other GPUs' is the oracle.
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
                              DType out = DType::kF32) {
    SCOPED_TRACE(what);
    AttentionProblem problem(shape, 31);
    DeviceProblem(problem).Run({.out = out});
  }
};

TEST_P(AttentionSm90Test, HasTheBitsOfTheFormForEveryGpu) {
  ExpectEqualBits(ShapeOf(64, {{70, 70}}), "one tile");
  ExpectEqualBits(ShapeOf(128, {{70, 130}}), "dim 128", GetParam());
  ExpectEqualBits(ShapeOf(256, {{40, 130}}), "dim 256");
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionSm90Test, testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(ToString(info.param)); });

}  // namespace
}  // namespace baton::cuda
