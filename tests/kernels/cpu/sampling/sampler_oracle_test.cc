#include <gtest/gtest.h>

#include <string>

#include "kernels/cpu/sampling/sampler.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/sample_problem.h"

namespace baton {
namespace {

// Every kernel set beside an oracle that sorts.
class SamplerOracleTest : public KernelTest {
 protected:
  ChosenToken Choose(const SampleProblem& problem) {
    SampleRow row = MakeSampleRow(problem.params, problem.position);
    std::vector<int32_t> history = problem.prompt;
    history.insert(history.end(), problem.emitted.begin(), problem.emitted.end());
    row.num_bias = static_cast<int32_t>(problem.params.logit_bias.size());
    row.num_mask = problem.masks() ? static_cast<int32_t>(problem.end_tokens.size()) : 0;
    row.num_prompt = row.first_emitted = static_cast<int32_t>(problem.prompt.size());
    row.num_emitted = static_cast<int32_t>(problem.emitted.size());
    const int num_top = std::min(std::max(row.num_top, 0), problem.vocab_size());
    std::vector<int32_t> tokens(num_top, -7);
    std::vector<float> logits(num_top, -7);
    ChosenToken chosen{.result = sampler_.Sample({.logits = problem.logits.data(),
                                                  .logits_stride = problem.vocab_size(),
                                                  .vocab_size = problem.vocab_size(),
                                                  .rows = &row,
                                                  .num_rows = 1,
                                                  .biases = problem.params.logit_bias.data(),
                                                  .masks = problem.end_tokens.data(),
                                                  .history = history.data(),
                                                  .top = {tokens.data(), logits.data(), num_top}},
                                                 0)};
    if (chosen.result.is_bad != 0) return chosen;
    for (int i = 0; i < num_top; ++i) chosen.top.emplace_back(tokens[i], logits[i]);
    return chosen;
  }
  void ExpectAsTheOracle(const SampleProblem& problem, const std::string& what) {
    EXPECT_EQ(Choose(problem), SampleOracle(math_, problem).Choose()) << what;
  }

  const RowMath* math_ = &kernels_->row_math();
  Sampler sampler_{math_};
};

TEST_P(SamplerOracleTest, ChoosesWhatASortChooses) {
  Random random(21);
  for (const int32_t vocab_size : {1, 2, 63, 64, 65, 130, 1000, 4095, 4096, 9000}) {
    for (int i = 0; i < 100000 / (vocab_size + 1000) && !HasFailure(); ++i) {
      const std::string what = std::to_string(vocab_size) + " " + std::to_string(i);
      ExpectAsTheOracle(RandomProblem(random, vocab_size), what);
    }
  }
}

// A long row of few values, so that the edges of top_k and top_p lie among many equal ones.
TEST_P(SamplerOracleTest, EdgesAmongManyEqualTokens) {
  Random random(22);
  SampleProblem problem;
  problem.logits.resize(20000);
  for (float& x : problem.logits) x = static_cast<float>(random.Below(7));
  for (const int32_t top_k : {0, 300, 320, 5000, 15000, 19999}) {
    for (const float top_p : {0.05f, 0.5f, 0.63f, 0.64f, 0.9f, 0.999f, 1.0f}) {
      problem.params.top_k = top_k;
      problem.params.top_p = top_p;
      ++problem.position;
      ExpectAsTheOracle(problem, std::to_string(top_k) + " " + std::to_string(top_p));
    }
  }
}

// The next row's result does not depend on what a row before it left behind.
TEST_P(SamplerOracleTest, ARowThatIsNoDistributionIsBadAndTheNextIsNot) {
  const SampleProblem good{.logits = RandomFloats(3, 5000), .params = {.num_logprobs = 3}};
  for (const float bad_value : {NAN, -NAN, INFINITY}) {
    for (const size_t at : {0, 63, 64, 2500, 4999}) {
      SampleProblem bad = good;
      bad.logits[at] = bad_value;
      EXPECT_EQ(Choose(bad).result, (SampleResult{.token = -1, .is_bad = 1}));
      ExpectAsTheOracle(good, "after a bad row");
    }
  }
  const SampleProblem masked{.logits = std::vector<float>(5000, -INFINITY)};
  EXPECT_EQ(Choose(masked).result, (SampleResult{.token = -1, .is_bad = 1}));
}

// Of a peer that checks nothing: infinity less infinity.
TEST_P(SamplerOracleTest, PenaltiesThatMakeANanMakeABadRow) {
  SampleProblem problem{.logits = RandomFloats(3, 500), .params = {.num_logprobs = 3}};
  problem.logits[7] = 4;
  problem.emitted = {7, 7};
  problem.params.repetition_penalty = 1e-38f;
  problem.params.frequency_penalty = 3e38f;
  EXPECT_EQ(Choose(problem).result, (SampleResult{.token = -1, .is_bad = 1}));
  ExpectAsTheOracle(problem, "a NaN");
  problem.params.frequency_penalty = 1;
  ExpectAsTheOracle(problem, "an infinite logit");
}

BATON_FOR_EACH_KERNEL_SET(SamplerOracleTest);

}  // namespace
}  // namespace baton
