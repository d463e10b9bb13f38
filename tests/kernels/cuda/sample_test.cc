#include "kernels/cuda/sample.h"

#include <memory>
#include <string>
#include <vector>

#include "kernels/api/portable_math.h"
#include "tests/kernels/cuda/device_fixture.h"
#include "tests/kernels/sample_problem.h"
#include "tests/kernels/host_sampler.h"

namespace baton::cuda {
namespace {

constexpr float kInf = INFINITY;

// The lists that rows point into, one behind the other, as the builder of a step makes them.
struct Lists {
  std::vector<SampleRow> rows;
  std::vector<LogitBias> biases;
  std::vector<int32_t> masks, history;

  template <typename T>
  static void Append(std::vector<T>& to, const std::vector<T>& from, int32_t& first,
                     int32_t& count) {
    first = static_cast<int32_t>(to.size());
    count = static_cast<int32_t>(from.size());
    to.insert(to.end(), from.begin(), from.end());
  }
  void Add(const SampleProblem& problem, int32_t logit_row) {
    SampleRow row = MakeSampleRow(problem.params, problem.position);
    Append(biases, problem.params.logit_bias, row.first_bias, row.num_bias);
    if (problem.masks()) Append(masks, problem.end_tokens, row.first_mask, row.num_mask);
    Append(history, problem.prompt, row.first_prompt, row.num_prompt);
    Append(history, problem.emitted, row.first_emitted, row.num_emitted);
    row.logit_row = logit_row;
    rows.push_back(row);
  }
};

// Rows of logits in reverse order, with NaNs between them.
class DeviceLogits {
 public:
  explicit DeviceLogits(const std::vector<const std::vector<float>*>& rows)
      : num_rows_(static_cast<int32_t>(rows.size())),
        stride(static_cast<int64_t>(rows[0]->size()) + 3),
        values_(DType::kF32, Joined(rows)) {}
  const float* data() const { return values_.f32(); }
  int32_t RowOf(size_t i) const { return num_rows_ - 1 - static_cast<int32_t>(i); }

 private:
  std::vector<float> Joined(const std::vector<const std::vector<float>*>& rows) const {
    std::vector<float> all(rows.size() * stride, NAN);
    for (size_t i = 0; i < rows.size(); ++i) {
      std::ranges::copy(*rows[i], all.begin() + RowOf(i) * stride);
    }
    return all;
  }
  int32_t num_rows_;

 public:
  const int64_t stride;

 private:
  DeviceFloats values_;
};

class SampleTest : public DeviceTest {
 protected:
  // Problems of one vocabulary in one launch.
  std::vector<ChosenToken> Choose(const std::vector<SampleProblem>& problems) {
    std::vector<const std::vector<float>*> logits;
    for (const auto& problem : problems) logits.push_back(&problem.logits);
    const DeviceLogits device_logits(logits);
    Lists lists;
    int64_t stride = 1;
    for (size_t i = 0; i < problems.size(); ++i) {
      lists.Add(problems[i], device_logits.RowOf(i));
      stride = std::max<int64_t>(stride, problems[i].params.num_logprobs);
    }
    const size_t size = problems.size(), vocab_size = problems[0].logits.size();
    const DeviceArray<SampleRow> rows(lists.rows);
    const DeviceArray<LogitBias> biases(lists.biases);
    const DeviceArray<int32_t> masks(lists.masks), history(lists.history);
    const DeviceArray<SampleResult> results(std::vector<SampleResult>(size, {.token = -7}));
    const DeviceArray<int32_t> top_tokens(std::vector<int32_t>(size * stride, -7));
    const DeviceFloats top_logits(DType::kF32, std::vector<float>(size * stride, -7));
    const DeviceFloats adjusted(DType::kF32, static_cast<int64_t>(size * vocab_size));
    const DeviceArray<int32_t> counts(std::vector<int32_t>(size * vocab_size, 0));
    const SampleArgs args = {.logits = device_logits.data(),
                             .logits_stride = device_logits.stride,
                             .vocab_size = static_cast<int32_t>(vocab_size),
                             .rows = rows.data(),
                             .num_rows = static_cast<int64_t>(size),
                             .biases = biases.data(),
                             .masks = masks.data(),
                             .history = history.data(),
                             .results = results.data(),
                             .top = {top_tokens.data(), top_logits.f32(), stride},
                             .adjusted = adjusted.f32(),
                             .counts = counts.data()};
    EXPECT_EQ(Launch(args), cudaSuccess);
    EXPECT_EQ(counts.Read(), std::vector<int32_t>(size * vocab_size, 0));
    return Joined(results.Read(), top_tokens.Read(), top_logits.Read(), stride);
  }

  // A block for each row, or several parts of each.
  cudaError_t Launch(const SampleArgs& args) {
    if (scratch_ != nullptr) {
      return Sample(args, {static_cast<float*>(scratch_->data()), scratch_->size() / sizeof(float)},
                    nullptr);
    }
    if (parts_ == 0) return Sample(args, {}, nullptr);
    const DeviceBytes scratch(
        std::vector<std::byte>(static_cast<size_t>(SampleScratchBytes(args)), std::byte{0x5a}));
    const cudaError_t error = SampleByParts(args, scratch.data(), parts_, nullptr);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << emulation::LastMessage();
    return error;
  }

  std::vector<ChosenToken> ExpectAsTheCpu(const std::vector<SampleProblem>& problems) {
    const std::vector<ChosenToken> chosen = Choose(problems);
    for (size_t i = 0; i < problems.size(); ++i) {
      const ChosenToken expected = SampleOracle(math_, problems[i]).Choose();
      ExpectSame(chosen[i], expected, "row " + std::to_string(i));
      if (expected.result.is_bad == 0) ExpectAsTheSampler(chosen[i], problems[i]);
    }
    return chosen;
  }

  static void ExpectSame(const ChosenToken& a, const ChosenToken& b, const std::string& what) {
    EXPECT_EQ(a.result.token, b.result.token) << what;
    EXPECT_EQ(a.result.sum, b.result.sum) << what;
    EXPECT_EQ(a.result.is_bad, b.result.is_bad) << what;
    EXPECT_TRUE(a == b) << what;  // Of zeros the sign may differ: == of floats.
  }

  // The host's end: logarithms, and then the very words of the CPU's sampler.
  void ExpectAsTheSampler(const ChosenToken& chosen, const SampleProblem& problem) {
    const SamplingParams& params = problem.params;
    const SamplingContext context{.params = params, .prompt = problem.prompt};
    HostSampler sampler(cpu_.get(), problem.end_tokens);
    const TokenOutput expected =
        sampler.Sample({.logits = problem.logits,
                        .context = &context,
                        .emitted = problem.emitted,
                        .num_emitted = static_cast<int32_t>(problem.emitted.size()),
                        .position = problem.position});
    std::vector<int32_t> tokens;
    std::vector<float> logits;
    for (const auto& [token, logit] : chosen.top) {
      tokens.push_back(token);
      logits.push_back(logit);
    }
    const auto num_top = params.num_logprobs < 0 ? -1 : static_cast<int32_t>(chosen.top.size());
    const TokenOutput output = ReadSample(chosen.result, {tokens.data(), logits.data(), num_top}, 0,
                                          num_top, problem.position);
    EXPECT_EQ(output, expected);
  }

  static std::vector<ChosenToken> Joined(const std::vector<SampleResult>& results,
                                         const std::vector<int32_t>& tokens,
                                         const std::vector<float>& logits, int64_t stride) {
    std::vector<ChosenToken> chosen;
    for (size_t i = 0; i < results.size(); ++i) {
      chosen.push_back({results[i], {}});
      for (int64_t j = 0; j < stride && tokens[i * stride + j] != -7; ++j) {
        chosen[i].top.emplace_back(tokens[i * stride + j], logits[i * stride + j]);
      }
    }
    return chosen;
  }

  int parts_ = 0;
  std::unique_ptr<DeviceBytes> scratch_;
  std::unique_ptr<CpuKernels> cpu_ = MakeTestKernels("portable");
  const RowMath* math_ = &cpu_->row_math();
};

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

struct PartsCase {
  int32_t vocab_size;
  int parts;
  int rows;
};
class SamplePartsTest : public SampleTest, public testing::WithParamInterface<PartsCase> {};

TEST_P(SamplePartsTest, EqualsTheCpuBitByBit) {
  Random random(static_cast<uint64_t>(GetParam().vocab_size));
  parts_ = GetParam().parts;
  for (int done = 0; done < GetParam().rows && !HasFailure(); done += 10) {
    emulation::SetSeed(random.Next());
    std::vector<SampleProblem> problems;
    for (int i = 0; i < 10; ++i) problems.push_back(RandomProblem(random, GetParam().vocab_size));
    ExpectAsTheCpu(problems);
  }
}
INSTANTIATE_TEST_SUITE_P(, SamplePartsTest,
                         testing::ValuesIn(std::vector<PartsCase>{{1, 1, 10},
                                                                  {127, 3, 50},
                                                                  {512, 2, 50},
                                                                  {1000, 4, 50},
                                                                  {4133, 32, 20},
                                                                  {8192, 1, 20}}),
                         [](const auto& info) {
                           return std::to_string(info.param.vocab_size) + "In" +
                                  std::to_string(info.param.parts);
                         });

TEST_F(SampleTest, ARowThatIsNoDistributionSaysSoAndItsNeighboursAreChosen) {
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

TEST_F(SampleTest, BothZerosAreEqual) {
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

TEST_F(SampleTest, AdjustedLogitsMayAllBeMaskedOrOverflow) {
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
TEST_F(SampleTest, PenaltiesThatMakeANanMakeABadRowAndItsNeighboursAreChosen) {
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

TEST_F(SampleTest, ATokenOfTheHistoryIsPenalizedOnceAndItsOccurrencesAreCounted) {
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
class LargestTest : public SampleTest, public testing::WithParamInterface<int> {};

TEST_P(LargestTest, Vocabulary) {
  parts_ = GetParam();
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
INSTANTIATE_TEST_SUITE_P(, LargestTest, testing::Values(0, 32), testing::PrintToStringParamName());

// As many tokens as a list has room for are alike, or one more.
TEST_F(SampleTest, AListThatIsFullAndOneThatOverflows) {
  parts_ = 3;
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
    ExpectAsTheCpu(problems);
  }
}

// Logits farther from the likeliest than digits reach, and temperatures at which they still count.
TEST_F(SampleTest, FarBelowTheLikeliest) {
  parts_ = 2;
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
  ExpectAsTheCpu(problems);
}

TEST_F(SampleTest, LongRowsAreDividedWhereThereIsScratchMemory) {
  Random random(8);
  for (const size_t rows : {1, 5}) {
    std::vector<SampleProblem> problems;
    for (size_t i = 0; i < rows; ++i) problems.push_back(RandomProblem(random, 9000));
    for (const size_t missing : {0, 8}) {
      scratch_ = std::make_unique<DeviceBytes>(std::vector<std::byte>(
          static_cast<size_t>(SampleScratchBytes({.num_rows = static_cast<int64_t>(rows)})) -
              missing,
          std::byte{0x5a}));
      ExpectAsTheCpu(problems);
      const std::vector<std::byte> after = scratch_->Read();
      const bool divided =
          std::ranges::any_of(after, [](std::byte b) { return b != std::byte{0x5a}; });
      EXPECT_EQ(divided, missing == 0);
    }
  }
}

// The likeliest token's weight is 2^44, the other's a few units less than the share needs: by a
// quarter of a unit, and by one and a quarter.
TEST_F(SampleTest, AShareIsRoundedUp) {
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

TEST_F(SampleTest, MoreAlternativesThanTokensAreAllOfThem) {
  const std::vector<SampleProblem> problems = {{RandomFloats(3, 37), {.num_logprobs = 40}},
                                               {RandomFloats(4, 37), {.num_logprobs = 37}}};
  EXPECT_EQ(ExpectAsTheCpu(problems)[0].top.size(), 37);
}

TEST_F(SampleTest, RefusesVocabulariesWhoseSumsCouldOverflow) {
  for (const int32_t vocab_size : {0, kMaxVocabulary + 1}) {
    EXPECT_EQ(Sample({.vocab_size = vocab_size, .num_rows = 1}, {}, nullptr), cudaErrorInvalidValue);
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
