#include <string>
#include <vector>

#include "kernels/api/portable_math.h"
#include "tests/kernels/cuda/sample_fixture.h"

namespace baton::cuda {
namespace {

constexpr float kInf = INFINITY;

struct RandomCase {
  int32_t vocab_size;
  int rows;
};
class SampleRandomTest : public SampleTest, public testing::WithParamInterface<RandomCase> {};

TEST_P(SampleRandomTest, EqualsTheCpuBitByBit) {
  Random random(static_cast<uint64_t>(GetParam().vocab_size));
  for (int done = 0; done < GetParam().rows && !HasFailure(); done += 25) {
    emulation::SetSeed(random.Next());
    std::vector<SampleProblem> problems;
    for (int i = 0; i < 25; ++i) problems.push_back(RandomProblem(random, GetParam().vocab_size));
    ExpectAsTheCpu(problems);
  }
}
INSTANTIATE_TEST_SUITE_P(, SampleRandomTest,
                         testing::ValuesIn(std::vector<RandomCase>{{1, 50},
                                                                   {2, 50},
                                                                   {31, 200},
                                                                   {32, 100},
                                                                   {33, 300},
                                                                   {127, 500},
                                                                   {129, 500},
                                                                   {1000, 250},
                                                                   {4133, 50},
                                                                   {8193, 25}}),
                         [](const auto& info) { return std::to_string(info.param.vocab_size); });

INSTANTIATE_TEST_SUITE_P(, EachWayTest, testing::Values(0, 3), testing::PrintToStringParamName());

TEST_P(EachWayTest, ARowThatIsNoDistributionSaysSoAndItsNeighboursAreChosen) {
  std::vector<SampleProblem> problems;
  for (const float bad : {NAN, -NAN, kInf}) {
    for (const size_t at : {0, 70, 139}) {
      problems.push_back({.logits = RandomFloats(at, 140), .params = {.num_logprobs = 3}});
      problems.push_back(problems.back());
      problems.back().logits[at] = bad;
    }
  }
  problems.push_back({.logits = std::vector<float>(140, -kInf)});
  const std::vector<ChosenToken> chosen = ExpectAsTheCpu(problems);
  for (size_t i = 0; i < problems.size(); ++i) {
    const bool is_bad = i % 2 == 1 || i == 18;
    EXPECT_EQ(chosen[i].result.is_bad, is_bad ? 1 : 0) << i;
    if (is_bad) {
      EXPECT_EQ(chosen[i].result, (SampleResult{.token = -1, .is_bad = 1}));
    }
    EXPECT_EQ(chosen[i].top.size(), is_bad ? 0 : 3);
  }
}

TEST_P(EachWayTest, BothZerosAreEqual) {
  for (const auto& logits : std::vector<std::vector<float>>{
           {-1, -0.0f, 0.0f, -2}, {-1, 0.0f, -0.0f, -2}, {-0.0f, 0.0f, 0.0f, -0.0f}}) {
    std::vector<SampleProblem> problems;
    for (const float temperature : {0.0f, 1.0f}) {
      for (const int32_t top_k : {1, 2}) {
        problems.push_back(
            {logits, {.temperature = temperature, .top_k = top_k, .num_logprobs = 4}});
      }
    }
    EXPECT_EQ(ExpectAsTheCpu(problems)[2].result.token, logits[0] == 0 ? 0 : 1);
  }
}

TEST_P(EachWayTest, AdjustedLogitsMayAllBeMaskedOrOverflow) {
  SampleProblem masked{.logits = {1, 2, 3}, .params = {.min_tokens = 1}};
  masked.end_tokens = {2, -1, 1, 3, 0, 1};
  SampleProblem overflow{.logits = {1, 2, 3}, .params = {.repetition_penalty = 1e-38f}};
  overflow.logits[1] = 2e5f;
  overflow.prompt = {2, 1, 2};
  SampleProblem greedy = overflow;
  greedy.params.temperature = 0;
  const std::vector<ChosenToken> chosen = ExpectAsTheCpu({masked, overflow, greedy});
  EXPECT_EQ(chosen[0].result.token, 0);
  EXPECT_EQ(chosen[1].result.token, 1);
}

// Of a peer that checks nothing: infinity less infinity.
TEST_P(EachWayTest, PenaltiesThatMakeANanMakeABadRowAndItsNeighboursAreChosen) {
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
  const std::vector<ChosenToken> chosen = ExpectAsTheCpu(problems);
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(chosen[i].result, (SampleResult{.token = -1, .is_bad = 1})) << i;
    EXPECT_EQ(chosen[i + 1].result.token, 7) << i;
  }
}

TEST_P(EachWayTest, ATokenOfTheHistoryIsPenalizedOnceAndItsOccurrencesAreCounted) {
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
  ExpectAsTheCpu(problems);
}

// The sum of all weights is 2^63; ties between all tokens reach over the chunks of all warps.
TEST_P(EachWayTest, TheLargestVocabulary) {
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
  const std::vector<ChosenToken> chosen = ExpectAsTheCpu(problems);
  EXPECT_EQ(chosen[0].result.sum, uint64_t{1} << 63);
  EXPECT_EQ(chosen[2].result.token, 0);
  EXPECT_EQ(chosen[3].result.token, kMaxVocabulary - 1);
}

// The likeliest token's weight is 2^44, the other's a few units less than the share needs: by a
// quarter of a unit, and by one and a quarter.
TEST_P(EachWayTest, AShareIsRoundedUp) {
  constexpr uint64_t kOne = kWeightOne;
  std::vector<SampleProblem> problems;
  for (const uint64_t less : {(1 << 22) - 1, (1 << 22) - 3}) {
    const float logit = static_cast<float>(std::log1p(-static_cast<double>(less) * 0x1p-44));
    uint64_t weight = 0;
    math_->weights(&logit, 1, 0, 1.44269504088896338700, &weight);
    ASSERT_EQ(weight, kOne - less);
    SampleProblem problem{{0, logit}, {.top_p = 0.5f + 0x1p-24f}};
    for (; problem.position < 20; ++problem.position) problems.push_back(problem);
  }
  const std::vector<ChosenToken> chosen = ExpectAsTheCpu(problems);
  for (const size_t first : {0, 20}) {
    EXPECT_TRUE(std::any_of(chosen.begin() + first, chosen.begin() + first + 20,
                            [](const ChosenToken& c) { return c.result.token == 1; }));
  }
}

TEST_P(EachWayTest, AShareThatIsReachedExactlyTakesNoMore) {
  std::vector<SampleProblem> problems;
  for (int32_t position = 0; position < 30; ++position) {
    problems.push_back({std::vector<float>(8, 2.5f), {.top_p = 0.5f}});
    problems.back().position = position;
  }
  for (const ChosenToken& chosen : ExpectAsTheCpu(problems)) EXPECT_LT(chosen.result.token, 4);
}

// The likeliest token has 2^44, all others have one.
TEST_P(EachWayTest, WeightsOfOneUnitCount) {
  std::vector<float> logits(300, -44.4f * 0.69314718f);
  logits[7] = 0;
  key_ = ~uint64_t{0};
  const std::vector<ChosenToken> chosen = Choose({{logits, {.num_logprobs = 0}}});
  EXPECT_EQ(chosen[0].result.sum, kWeightOne + 299);
  EXPECT_EQ(chosen[0].result.token, 299);
}

TEST_P(EachWayTest, MoreAlternativesThanTokensAreAllOfThem) {
  const std::vector<SampleProblem> problems = {{RandomFloats(3, 37), {.num_logprobs = 40}},
                                               {RandomFloats(4, 37), {.num_logprobs = 37}}};
  EXPECT_EQ(ExpectAsTheCpu(problems)[0].top.size(), 37);
}

TEST_F(SampleTest, RefusesVocabulariesWhoseSumsCouldOverflow) {
  for (const int32_t vocab_size : {0, kMaxVocabulary + 1}) {
    EXPECT_EQ(Sample({.vocab_size = vocab_size, .num_rows = 1}, {}, nullptr),
              cudaErrorInvalidValue);
    EXPECT_EQ(Score({.vocab_size = vocab_size, .num_rows = 1}, nullptr), cudaErrorInvalidValue);
  }
  EXPECT_EQ(Sample({.vocab_size = 5}, {}, nullptr), cudaSuccess);
  EXPECT_EQ(Score({.vocab_size = 5}, nullptr), cudaSuccess);
}

// Into a place of its own each; what was not chosen is token 0, and the rest stays as it is.
TEST_F(SampleTest, TokensAreTakenToTheirPlaces) {
  for (const int32_t count : {1, 127, 128, 300}) {
    std::vector<SampleResult> results(static_cast<size_t>(count) + 5);
    for (size_t i = 0; i < results.size(); ++i) {
      results[i].token = i % 7 == 3 ? -1 : static_cast<int32_t>(i) * 11;
    }
    std::vector<TakenToken> taken;
    std::vector<int32_t> expected(static_cast<size_t>(count) * 2, -5);
    for (int32_t i = 0; i < count; ++i) {
      taken.push_back({.row = (i * 5 + 2) % (count + 5), .to = 2 * ((i + 3) % count)});
      expected[taken.back().to] = std::max(0, results[taken.back().row].token);
    }
    const DeviceArray<SampleResult> device_results(results);
    const DeviceArray<TakenToken> device_taken(taken);
    const DeviceArray<int32_t> tokens(std::vector<int32_t>(expected.size(), -5));
    ASSERT_EQ(TakeTokens({.results = device_results.data(),
                          .taken = device_taken.data(),
                          .count = count,
                          .tokens = tokens.data()},
                         nullptr),
              cudaSuccess);
    EXPECT_EQ(tokens.Read(), expected) << count;
  }
}

struct ScoreProblem {
  std::vector<float> logits;
  int32_t token = 0;
  int32_t num_top = 0;
};

class ScoreTest : public SampleTest {
 protected:
  void ExpectAsTheCpu(const std::vector<ScoreProblem>& problems) {
    constexpr int64_t kStride = 7;
    std::vector<const std::vector<float>*> logits;
    for (const auto& problem : problems) logits.push_back(&problem.logits);
    const DeviceLogits device_logits(logits);
    std::vector<ScoreRow> rows;
    for (size_t i = 0; i < problems.size(); ++i) {
      rows.push_back({device_logits.RowOf(i), problems[i].token, problems[i].num_top});
    }
    const size_t size = problems.size();
    const DeviceArray<ScoreRow> device_rows(rows);
    const DeviceArray<ScoreResult> results(std::vector<ScoreResult>(size, {.rank = -7}));
    const DeviceArray<int32_t> top_tokens(std::vector<int32_t>(size * kStride, -7));
    const DeviceFloats top_logits(DType::kF32, static_cast<int64_t>(size * kStride));
    ASSERT_EQ(Score({.logits = device_logits.data(),
                     .logits_stride = device_logits.stride,
                     .vocab_size = static_cast<int32_t>(logits[0]->size()),
                     .rows = device_rows.data(),
                     .num_rows = static_cast<int64_t>(size),
                     .results = results.data(),
                     .top = {top_tokens.data(), top_logits.f32(), kStride}},
                    nullptr),
              cudaSuccess);
    const std::vector<ScoreResult> scores = results.Read();
    const std::vector<int32_t> tokens = top_tokens.Read();
    for (size_t i = 0; i < size; ++i) {
      ExpectScore(scores[i], std::span(tokens).subspan(i * kStride, kStride), problems[i]);
    }
  }
  void ExpectScore(const ScoreResult& score, std::span<const int32_t> top,
                   const ScoreProblem& problem) {
    const SampleProblem as_sampled{.logits = problem.logits};
    EXPECT_EQ(score, SampleOracle(math_, as_sampled).Score(problem.token));
    if (score.is_bad != 0) {
      EXPECT_EQ(top[0], -7);
      return;
    }
    const PromptLogprob expected = HostSampler(cpu_.get(), {})
                                       .Score(problem.logits, problem.token, 0, problem.num_top);
    EXPECT_EQ(score.rank, expected.rank);
    const double log_sum = score.max + PortableLog(static_cast<double>(score.sum) * 0x1p-44);
    EXPECT_EQ(static_cast<float>(score.token_logit - log_sum), expected.logprob);
    for (int64_t i = 0; i < std::ssize(top); ++i) {
      EXPECT_EQ(top[i], i < std::ssize(expected.top) ? expected.top[i].token : -7) << i;
    }
  }
};

TEST_F(ScoreTest, EqualsTheCpuBitByBit) {
  Random random(11);
  for (const int32_t vocab_size : {1, 5, 33, 257, 1000, 8200}) {
    std::vector<ScoreProblem> problems;
    for (int i = 0; i < 40; ++i) {
      problems.push_back({RandomLogits(random, vocab_size),
                          static_cast<int32_t>(random.Below(vocab_size)),
                          static_cast<int32_t>(random.Below(8))});
    }
    ExpectAsTheCpu(problems);
  }
}

TEST_F(ScoreTest, ARowThatIsNoDistributionSaysSo) {
  std::vector<ScoreProblem> problems;
  for (const float bad : {NAN, -NAN, kInf}) {
    problems.push_back({RandomFloats(1, 50), 3, 2});
    problems.back().logits[31] = bad;
    problems.push_back({RandomFloats(2, 50), 31, 2});
  }
  problems.push_back({std::vector<float>(50, -kInf), 3, 2});
  ExpectAsTheCpu(problems);
}

}  // namespace
}  // namespace baton::cuda