#include "common/model/step_results.h"

#include <gtest/gtest.h>

#include "kernels/make_device.h"

namespace baton {
namespace {

constexpr int32_t kNine = 9;

TEST(StepResultsTest, SlicesOfLogitsBecomeTheRowsThatWantThem) {
  const Processors cpu = *MakeDevice({});
  StepResults results = *StepResults::Create(*cpu.device, *cpu.host, {.vocab_size = kNine});
  auto context = std::make_shared<SamplingContext>();
  context->params.temperature = 0;
  StepPlan plan;
  for (int32_t i = 0; i < 5; ++i) {
    plan.rows.push_back({.sequence = {.counter = 10 + uint64_t(i)},
                         .tokens = {1},
                         .context_len = i,
                         .sample = i != 2,
                         .sampling = context});
  }
  results.Build(plan);
  ASSERT_EQ(results.num_rows(), 4);
  for (int64_t first = 0; first < 4; first += 2) {
    std::vector<float> logits(2 * kNine);
    logits[first + 3] = logits[kNine + first + 4] = 1;
    ASSERT_TRUE(results.Enqueue(first, 2, logits.data()).ok());
    results.Finish();
  }
  const std::vector<RowResult> rows = results.Take();
  ASSERT_EQ(rows.size(), 5u);
  const int32_t tokens[] = {3, 4, 0, 5, 6};
  for (int32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(rows[i].sequence, plan.rows[i].sequence);
    EXPECT_EQ(rows[i].sampled, i != 2);
    EXPECT_EQ(rows[i].output.token, tokens[i]);
    EXPECT_EQ(rows[i].output.position, i == 2 ? 0 : i + 1);
  }
}

}  // namespace
}  // namespace baton
