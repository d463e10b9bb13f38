// Score and TakeTokens of every device.
#include <span>
#include <vector>

#include "kernels/api/portable_math.h"
#include "tests/kernels/sample_fixture.h"

namespace baton {
namespace {

struct ScoreProblem {
  std::vector<float> logits;
  int32_t token = 0;
  int32_t num_top = 0;
};

class ScoreTest : public SampleCaseTest {
 protected:
  void ExpectAsTheOracle(const std::vector<ScoreProblem>& problems) {
    constexpr int64_t kStride = 7;
    std::vector<const std::vector<float>*> logits;
    for (const auto& problem : problems) logits.push_back(&problem.logits);
    const ReversedLogits logit_rows(logits);
    std::vector<ScoreRow> rows;
    for (size_t i = 0; i < problems.size(); ++i) {
      rows.push_back({logit_rows.RowOf(i), problems[i].token, problems[i].num_top});
    }
    const size_t size = problems.size();
    std::vector<ScoreResult> scores(size, {.rank = -7});
    std::vector<int32_t> tokens(size * kStride, -7);
    std::vector<float> top_logits(size * kStride, -7);
    ASSERT_EQ(ops()->Score({.logits = logit_rows.data(),
                            .logits_stride = logit_rows.stride(),
                            .vocab_size = static_cast<int32_t>(logits[0]->size()),
                            .rows = rows.data(),
                            .num_rows = static_cast<int64_t>(size),
                            .results = scores.data(),
                            .top = {tokens.data(), top_logits.data(), kStride}}),
              absl::OkStatus());
    for (size_t i = 0; i < size; ++i) {
      ExpectScore(scores[i], std::span(tokens).subspan(i * kStride, kStride),
                  std::span(top_logits).subspan(i * kStride, kStride), problems[i]);
    }
  }
  void ExpectScore(const ScoreResult& score, std::span<const int32_t> top,
                   std::span<const float> top_logits, const ScoreProblem& problem) {
    const SampleProblem as_sampled{.logits = problem.logits};
    EXPECT_EQ(score, SampleOracle(math(), as_sampled).Score(problem.token));
    if (score.is_bad != 0) {
      EXPECT_EQ(top[0], -7);
      return;
    }
    const PromptLogprob expected =
        HostSampler(cpu(), {}).Score(problem.logits, problem.token, 0, problem.num_top);
    EXPECT_EQ(score.rank, expected.rank);
    const double log_sum = score.max + PortableLog(static_cast<double>(score.sum) * 0x1p-44);
    EXPECT_EQ(static_cast<float>(score.token_logit - log_sum), expected.logprob);
    for (size_t i = 0; i < top.size(); ++i) {
      const bool is_told = i < expected.top.size();
      EXPECT_EQ(top[i], is_told ? expected.top[i].token : -7) << i;
      EXPECT_EQ(top_logits[i], is_told ? problem.logits[top[i]] : -7) << i;
    }
  }
};

TEST_P(ScoreTest, EqualsWhatASortSays) {
  Random random(11);
  for (const int32_t vocab_size : {1, 5, 33, 257, 1000, 8200}) {
    std::vector<ScoreProblem> problems;
    for (int i = 0; i < 40; ++i) {
      problems.push_back({RandomLogits(random, vocab_size),
                          static_cast<int32_t>(random.Below(vocab_size)),
                          static_cast<int32_t>(random.Below(8))});
    }
    ExpectAsTheOracle(problems);
  }
}

TEST_P(ScoreTest, ARowThatIsNoDistributionSaysSo) {
  std::vector<ScoreProblem> problems;
  for (const float bad : {NAN, -NAN, INFINITY}) {
    problems.push_back({RandomFloats(1, 50), 3, 2});
    problems.back().logits[31] = bad;
    problems.push_back({RandomFloats(2, 50), 31, 2});
  }
  problems.push_back({std::vector<float>(50, -INFINITY), 3, 2});
  ExpectAsTheOracle(problems);
}

using TakeTokensTest = SampleCaseTest;

// Into a place of its own each; what was not chosen is token 0, and the rest stays as it is.
TEST_P(TakeTokensTest, SampledTokensAreTakenToTheirPlaces) {
  for (const int32_t count : {1, 127, 128, 300}) {
    std::vector<SampleResult> results(static_cast<size_t>(count) + 5);
    for (size_t i = 0; i < results.size(); ++i) {
      results[i].token = i % 7 == 3 ? -1 : static_cast<int32_t>(i) * 11;
    }
    std::vector<TakenToken> taken;
    std::vector<int32_t> tokens(static_cast<size_t>(count) * 2, -5), expected = tokens;
    for (int32_t i = 0; i < count; ++i) {
      taken.push_back({.row = (i * 5 + 2) % (count + 5), .to = 2 * ((i + 3) % count)});
      expected[taken.back().to] = std::max(0, results[taken.back().row].token);
    }
    ASSERT_EQ(ops()->TakeTokens({.results = results.data(),
                                 .taken = taken.data(),
                                 .count = count,
                                 .tokens = tokens.data()}),
              absl::OkStatus());
    EXPECT_EQ(tokens, expected) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ScoreTest, testing::ValuesIn(ScoreCases()), NameOfSampleCase);
INSTANTIATE_TEST_SUITE_P(Cases, TakeTokensTest, testing::ValuesIn(ScoreCases()), NameOfSampleCase);

}  // namespace
}  // namespace baton
