// The acceptance grid of attention, as tests/kernels/attention_grid_test.cc has it for CPUs.
#include <string>

#include "tests/kernels/attention_cover.h"
#include "tests/kernels/cuda/device_attention.h"

namespace baton::cuda {
namespace {

using namespace attention_grid;  // NOLINT

// What the kernel lacks, beside the nearest that it has: the paged cache of the engine, half types.
AttentionShapes Served(AttentionShapes shape, int types_of_case) {
  shape.layout = CacheLayout::kHnd;
  const Types types = kTypes[types_of_case % std::size(kTypes)];
  shape.compute = types.compute;
  shape.kv = types.kv;
  shape.sparsity = {};
  return shape;
}

class AttentionGridOfDeviceTest : public DeviceTest {};

TEST_F(AttentionGridOfDeviceTest, EveryPairOfValuesAgreesWithADoubleLoop) {
  constexpr double kBudget = 1e5;
  size_t i = 0;
  for (const Case& c : PairwiseCover(1)) {
    const bool long_ones = ++i % 4 == 0;
    const AttentionShapes shape =
        Short(Served(ShapesOf(c, kBudget), c[3]), 40, long_ones ? 1100 : 140);
    SCOPED_TRACE(Describe(shape));
    emulation::SetSeed(i);
    AttentionProblem problem(shape, 100 + i);
    const DeviceProblem device(problem);
    const Result result = device.Run({.scratch = i % 2 == 0, .out = shape.compute});
    problem.Check(result.out, result.lse, 12, Describe(shape));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace baton::cuda
