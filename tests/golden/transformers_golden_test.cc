// TransformerRunner against transformers: the shipped model and random models of odd shapes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/golden/golden_file.h"
#include "tests/golden/model_under_test.h"

namespace baton {
namespace {

// Of the reference mode; 1.4e-5 was the most seen.
constexpr float kLogprobTolerance = 2e-4f;
// Below this margin of the reference's two best logits either token is right.
constexpr float kTieMargin = 0.02f;

class TransformersGoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  bool shipped() const { return GetParam() == "tiny-kjv"; }
  GoldenFile Golden() const {
    return ReadGoldenFile(shipped() ? "tiny-kjv.json" : "models/" + GetParam() + "/golden.json");
  }
  std::string Dir() const {
    return shipped() ? BATON_SOURCE_DIR "/deploy/models/tiny-kjv" : GoldenModelDir(GetParam());
  }
};

TEST_P(TransformersGoldenTest, FloatModeGivesTheSameTokensAndLogprobs) {
  ModelUnderTest model({.model_dir = Dir()});
  ASSERT_TRUE(model.ok());
  size_t num_steps = 0;
  size_t num_compared = 0;
  for (const GoldenCase& golden : Golden().cases) {
    SCOPED_TRACE(golden.name);
    const Answer answer = model.Run(golden, golden.greedy_ids.size());
    ASSERT_EQ(answer.prompt_logprobs.size(), golden.prompt_logprobs.size());
    for (size_t i = 0; i < golden.prompt_logprobs.size(); ++i) {
      EXPECT_NEAR(answer.prompt_logprobs[i], golden.prompt_logprobs[i], kLogprobTolerance) << i;
    }
    ASSERT_EQ(answer.outputs.size(), golden.greedy_ids.size());
    for (size_t i = 0; i < golden.greedy_ids.size(); ++i) {
      ++num_steps;
      if (golden.greedy_margins[i] < kTieMargin) continue;
      ++num_compared;
      EXPECT_EQ(answer.outputs[i].token, golden.greedy_ids[i]) << i;
      EXPECT_NEAR(answer.outputs[i].logprob, golden.greedy_logprobs[i], kLogprobTolerance) << i;
      EXPECT_EQ(answer.outputs[i].position, static_cast<int32_t>(golden.prompt_ids.size() + i));
    }
  }
  EXPECT_GE(num_compared * 10, num_steps * 9);
}

TEST_P(TransformersGoldenTest, Bf16ModeIsAtMostTwiceAsFarOffAsTransformersOwn) {
  ModelUnderTest model({.model_dir = Dir(), .compute_dtype = DType::kBF16});
  ASSERT_TRUE(model.ok());
  const GoldenFile file = Golden();
  double sum = 0;
  size_t count = 0;
  for (const GoldenCase& golden : file.cases) {
    const Answer answer = model.Run(golden, 0);
    ASSERT_EQ(answer.prompt_logprobs.size(), golden.prompt_logprobs.size());
    for (size_t i = 0; i < golden.prompt_logprobs.size(); ++i) {
      const double difference = answer.prompt_logprobs[i] - golden.prompt_logprobs[i];
      sum += difference * difference;
      ++count;
    }
  }
  ASSERT_GT(count, 0u);
  const double rms = std::sqrt(sum / static_cast<double>(count));
  EXPECT_LE(rms, 2 * file.bf16_rms);
  EXPECT_GT(rms, 0) << "nothing was rounded";
}

std::vector<std::string> AllModels() {
  std::vector<std::string> names = GoldenModels();
  names.push_back("tiny-kjv");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, TransformersGoldenTest, ::testing::ValuesIn(AllModels()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace baton
