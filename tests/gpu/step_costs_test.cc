// What a decode step of the smallest model takes on GPU 0: nearly all of it is the way from one
// step to the next, not arithmetic. One line of JSON, microseconds, and no verdict.

#include <gtest/gtest.h>

#include <cstdio>
#include <iterator>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "nlohmann/json.hpp"
#include "tests/unit/common/model/runner_harness.h"

namespace baton {
namespace {

#if defined(BATON_CUDA_DEVICE)
constexpr int kSteps = 500;
#else
constexpr int kSteps = 1;
#endif

double MicrosecondsPerStep(RunnerHarness& harness) {
  auto context = std::make_shared<SamplingContext>();
  context->prompt = {1, 2, 3};
  const auto seconds = [&](int num_tokens) {
    const Time begin = SteadyNow();
    const Generated all = Generate(harness, context, {.num_tokens = num_tokens});
    EXPECT_EQ(std::ssize(all.outputs), num_tokens);
    return ToSeconds(SteadyNow() - begin);
  };
  seconds(2);  // What comes first loads things.
  const double few = seconds(1);
  return 1e6 * (seconds(1 + kSteps) - few) / kSteps;
}

TEST(StepCostsTest, OneSequenceIsMeasured) {
  RunnerHarness harness({.model_dir = std::string(BATON_SOURCE_DIR) + "/deploy/models/tiny-kjv",
                         .compute_dtype = DType::kBF16,
                         .num_blocks = 48,
                         .device = "cuda",
                         .max_step_tokens = 8,
                         .max_step_rows = 1});
  const double step = MicrosecondsPerStep(harness);
  std::puts(nlohmann::json{{"decode_step", step}, {"steps", kSteps}}.dump().c_str());
}

}  // namespace
}  // namespace baton
