// Sample of every device, against an oracle that sorts.
#include <cfloat>
#include <string>
#include <vector>

#include "tests/kernels/sample_fixture.h"

namespace baton {
namespace {

using SampleTest = SampleCaseTest;

TEST_P(SampleTest, ChoosesWhatASortChooses) {
  Random random(21);
  for (const int32_t vocab_size :
       {1, 2, 31, 32, 33, 63, 64, 65, 127, 129, 130, 1000, 4095, 4096, 4133, 8193, 9000}) {
    const int64_t rows = GetParam().budget * 1000 / (vocab_size + 1000);
    for (int64_t done = 0; done < rows && !HasFailure(); done += 25) {
      SCOPED_TRACE(std::to_string(vocab_size) + " from " + std::to_string(done));
      std::vector<SampleProblem> problems;
      for (int64_t i = done; i < std::min(done + 25, rows); ++i) {
        problems.push_back(RandomProblem(random, vocab_size));
      }
      ExpectAsTheOracle(problems);
    }
  }
}

// A long row of few values, so that the edges of top_k and top_p lie among many equal ones.
TEST_P(SampleTest, EdgesAmongManyEqualTokens) {
  Random random(22);
  const int32_t n = GetParam().long_row;
  SampleProblem problem;
  problem.logits.resize(n);
  for (float& x : problem.logits) x = static_cast<float>(random.Below(7));
  std::vector<SampleProblem> problems;
  for (const int32_t top_k : {0, n * 3 / 200, n * 2 / 125, n / 4, n / 4 * 3, n - 1}) {
    for (const float top_p : {0.05f, 0.5f, 0.63f, 0.64f, 0.9f, 0.999f, 1.0f}) {
      problem.params.top_k = top_k;
      problem.params.top_p = top_p;
      ++problem.position;
      problems.push_back(problem);
    }
  }
  ExpectAsTheOracle(problems);
}

TEST_P(SampleTest, ARowThatIsNoDistributionSaysSoAndItsNeighboursAreChosen) {
  const size_t n = static_cast<size_t>(GetParam().long_row) / 4;
  const SampleProblem good{.logits = RandomFloats(3, n), .params = {.num_logprobs = 3}};
  std::vector<SampleProblem> problems;
  for (const float bad : {NAN, -NAN, INFINITY}) {
    for (const size_t at : {size_t{0}, size_t{63}, size_t{64}, n / 2, n - 1}) {
      problems.push_back(good);
      problems.push_back(good);
      problems.back().logits[at] = bad;
    }
  }
  problems.push_back({.logits = std::vector<float>(n, -INFINITY)});
  problems.push_back(good);
  const std::vector<ChosenToken> chosen = ExpectAsTheOracle(problems);
  for (size_t i = 0; i < problems.size(); ++i) {
    const bool is_bad = i < 30 ? i % 2 == 1 : i == 30;
    EXPECT_EQ(chosen[i].result.is_bad, is_bad ? 1 : 0) << i;
    if (is_bad) {
      EXPECT_EQ(chosen[i].result, (SampleResult{.token = -1, .is_bad = 1}));
    }
    EXPECT_EQ(chosen[i].top.size(), is_bad ? 0 : 3);
  }
}

TEST_P(SampleTest, BothZerosAreEqual) {
  for (const auto& logits : std::vector<std::vector<float>>{
           {-1, -0.0f, 0.0f, -2}, {-1, 0.0f, -0.0f, -2}, {-0.0f, 0.0f, 0.0f, -0.0f}}) {
    std::vector<SampleProblem> problems;
    for (const float temperature : {0.0f, 1.0f}) {
      for (const int32_t top_k : {1, 2}) {
        problems.push_back(
            {logits, {.temperature = temperature, .top_k = top_k, .num_logprobs = 4}});
      }
    }
    EXPECT_EQ(ExpectAsTheOracle(problems)[2].result.token, logits[0] == 0 ? 0 : 1);
  }
}

TEST_P(SampleTest, AdjustedLogitsMayAllBeMaskedOrOverflow) {
  SampleProblem masked{.logits = {1, 2, 3}, .params = {.min_tokens = 1}};
  masked.end_tokens = {2, -1, 1, 3, 0, 1};
  SampleProblem overflow{.logits = {1, 2, 3}, .params = {.repetition_penalty = 1e-38f}};
  overflow.logits[1] = 2e5f;
  overflow.prompt = {2, 1, 2};
  SampleProblem greedy = overflow;
  greedy.params.temperature = 0;
  const std::vector<ChosenToken> chosen = ExpectAsTheOracle({masked, overflow, greedy});
  EXPECT_EQ(chosen[0].result.token, 0);
  EXPECT_EQ(chosen[1].result.token, 1);
}

// Of a peer that checks nothing: infinity less infinity.
TEST_P(SampleTest, PenaltiesThatMakeANanMakeABadRowAndItsNeighboursAreChosen) {
  std::vector<SampleProblem> problems;
  for (const float temperature : {0.0f, 1.0f}) {
    SampleProblem problem{.logits = RandomFloats(3, 500),
                          .params = {.temperature = temperature,
                                     .repetition_penalty = 1e-38f,
                                     .frequency_penalty = 3e38f,
                                     .num_logprobs = 0}};
    problem.logits[7] = 4;
    problem.emitted = {7, 7};
    problems.push_back(problem);
    problem.params.frequency_penalty = 1;
    problems.push_back(problem);
  }
  const std::vector<ChosenToken> chosen = ExpectAsTheOracle(problems);
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(chosen[i].result, (SampleResult{.token = -1, .is_bad = 1})) << i;
    EXPECT_EQ(chosen[i + 1].result.token, 7) << i;
  }
}

TEST_P(SampleTest, ATokenOfTheHistoryIsPenalizedOnceAndItsOccurrencesAreCounted) {
  SampleProblem problem{.logits = RandomFloats(4, 300)};
  problem.params = {.temperature = 0.5f,
                    .repetition_penalty = 1.1f,
                    .frequency_penalty = -0.003f,
                    .presence_penalty = 0.25f};
  problem.emitted.assign(1000, 17);
  problem.prompt.assign(300, 5);
  problem.prompt[200] = 17;
  std::vector<SampleProblem> problems;
  for (; problem.position < 50; ++problem.position) problems.push_back(problem);
  ExpectAsTheOracle(problems);
}

// The sum of all weights is 2^63; ties between all tokens reach over the chunks of all warps.
TEST_P(SampleTest, TheLargestVocabulary) {
  const std::vector<float> equal(kMaxVocabulary, -3.5f);
  std::vector<SampleProblem> problems = {
      {equal, {.top_p = 1 - 0x1p-24f, .seed = 1, .num_logprobs = 2}},
      {equal, {.top_k = kMaxVocabulary - 1, .top_p = 0.3f, .seed = 2}},
      {equal, {}},
      {equal, {}}};
  // The first and the last of all tokens.
  const auto key = [&](int i) { return MakeSampleRow(problems[i].params, 0).key; };
  while (key(2) >> 45 != 0) ++problems[2].params.seed;
  while (~key(3) >> 45 != 0) ++problems[3].params.seed;
  static const std::vector<ChosenToken> expected = Oracle(problems);  // It takes its time.
  const std::vector<ChosenToken> chosen = ExpectAs(expected, problems);
  EXPECT_EQ(chosen[0].result.sum, uint64_t{1} << 63);
  EXPECT_EQ(chosen[2].result.token, 0);
  EXPECT_EQ(chosen[3].result.token, kMaxVocabulary - 1);
}

// The likeliest token's weight is 2^44, the other's a few units less than the share needs: by a
// quarter of a unit, and by one and a quarter.
TEST_P(SampleTest, AShareIsRoundedUp) {
  constexpr uint64_t kOne = kWeightOne;
  std::vector<SampleProblem> problems;
  for (const uint64_t less : {(1 << 22) - 1, (1 << 22) - 3}) {
    const float logit = static_cast<float>(std::log1p(-static_cast<double>(less) * 0x1p-44));
    uint64_t weight = 0;
    math()->weights(&logit, 1, 0, 1.44269504088896338700, &weight);
    ASSERT_EQ(weight, kOne - less);
    SampleProblem problem{{0, logit}, {.top_p = 0.5f + 0x1p-24f}};
    for (; problem.position < 20; ++problem.position) problems.push_back(problem);
  }
  const std::vector<ChosenToken> chosen = ExpectAsTheOracle(problems);
  for (const size_t first : {0, 20}) {
    EXPECT_TRUE(std::any_of(chosen.begin() + first, chosen.begin() + first + 20,
                            [](const ChosenToken& c) { return c.result.token == 1; }));
  }
}

TEST_P(SampleTest, AShareThatIsReachedExactlyTakesNoMore) {
  std::vector<SampleProblem> problems;
  for (int32_t position = 0; position < 30; ++position) {
    problems.push_back({std::vector<float>(8, 2.5f), {.top_p = 0.5f}});
    problems.back().position = position;
  }
  for (const ChosenToken& chosen : ExpectAsTheOracle(problems)) EXPECT_LT(chosen.result.token, 4);
}

// The likeliest token has 2^44, all others have one.
TEST_P(SampleTest, WeightsOfOneUnitCount) {
  std::vector<float> logits(300, -44.4f * 0.69314718f);
  logits[7] = 0;
  const std::vector<ChosenToken> chosen =
      Choose({{logits, {.num_logprobs = 0}}}, /*key=*/~uint64_t{0});
  EXPECT_EQ(chosen[0].result.sum, kWeightOne + 299);
  EXPECT_EQ(chosen[0].result.token, 299);
}

TEST_P(SampleTest, MoreAlternativesThanTokensAreAllOfThem) {
  const std::vector<SampleProblem> problems = {{RandomFloats(3, 37), {.num_logprobs = 40}},
                                               {RandomFloats(4, 37), {.num_logprobs = 37}}};
  EXPECT_EQ(ExpectAsTheOracle(problems)[0].top.size(), 37);
}

// As many tokens as a list of a GPU has room for are alike, or one more.
TEST_P(SampleTest, AListThatIsFullAndOneThatOverflows) {
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
    ExpectAsTheOracle(problems);
  }
}

// Logits farther from the likeliest than digits reach, and temperatures at which they still count.
TEST_P(SampleTest, FarBelowTheLikeliest) {
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
  ExpectAsTheOracle(problems);
}

// Differences of logits that only a temperature like theirs shows.
TEST_P(SampleTest, NumbersBelowTheNormalOnes) {
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
  ExpectAsTheOracle(problems);
}

INSTANTIATE_TEST_SUITE_P(Cases, SampleTest, testing::ValuesIn(SampleCases()), NameOfSampleCase);

}  // namespace
}  // namespace baton
