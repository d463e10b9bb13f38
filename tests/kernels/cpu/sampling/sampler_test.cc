#include "kernels/cpu/sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "common/base/random.h"
#include "kernels/make_device.h"
#include "tests/kernels/host_sampler.h"
#include "xxhash.h"

namespace baton {
namespace {

using testing::ElementsAre;

constexpr int32_t kEos = 7;

// Draws from one row of logits over eight tokens.
class SamplerTest : public testing::Test {
 protected:
  TokenOutput Sample(int32_t position = 0) {
    return sampler_.Sample({.logits = logits_,
                            .context = &context_,
                            .emitted = emitted_,
                            .num_emitted = static_cast<int32_t>(emitted_.size()),
                            .position = position});
  }
  int32_t Greedy() {
    params_.temperature = 0;
    return Sample().token;
  }
  // How often each token comes up at `draws` positions.
  std::map<int32_t, int> Histogram(int draws) {
    std::map<int32_t, int> counts;
    for (int i = 0; i < draws; ++i) ++counts[Sample(i).token];
    return counts;
  }
  std::set<int32_t> Seen(int draws = 2000) {
    std::set<int32_t> seen;
    for (const auto& [token, count] : Histogram(draws)) seen.insert(token);
    return seen;
  }
  double Probability(int32_t token, double temperature = 1) const {
    double sum = 0;
    for (const float l : logits_) sum += std::exp(l / temperature);
    return std::exp(logits_[token] / temperature) / sum;
  }

  std::vector<float> logits_ = {0.5f, 2.0f, -1.0f, 3.0f, 3.0f, 0.0f, 1.0f, 2.5f};
  SamplingContext context_;
  SamplingParams& params_ = context_.params;
  std::vector<int32_t> emitted_;
  std::unique_ptr<CpuKernels> kernels_ = *MakeCpuKernels({});
  HostSampler sampler_{kernels_.get(), {kEos}};
};

TEST_F(SamplerTest, GreedyTakesTheLowerOfTwoEqualTokens) { EXPECT_EQ(Greedy(), 3); }

TEST_F(SamplerTest, DrawsAreAFunctionOfSeedChoiceAndPosition) {
  const auto draw = [&](uint64_t seed, uint32_t choice) {
    params_.seed = seed;
    params_.choice = choice;
    std::vector<int32_t> tokens;
    for (int i = 0; i < 50; ++i) tokens.push_back(Sample(i).token);
    return tokens;
  };
  const std::vector<int32_t> first = draw(1, 0);
  EXPECT_NE(draw(2, 0), first);
  EXPECT_NE(draw(1, 1), first);
  EXPECT_EQ(draw(1, 0), first);
  // Not even the order of draws matters.
  EXPECT_EQ(Sample(20).token, first[20]);
}

TEST_F(SamplerTest, FrequenciesFollowTheSoftmaxAtATemperature) {
  for (const double temperature : {0.7, 1.0, 2.0}) {
    params_.temperature = static_cast<float>(temperature);
    const int draws = 20000;
    std::map<int32_t, int> counts = Histogram(draws);
    for (int32_t token = 0; token < 8; ++token) {
      const double p = Probability(token, params_.temperature);
      const double sigma = std::sqrt(p * (1 - p) / draws);
      EXPECT_NEAR(counts[token] / double{draws}, p, 5 * sigma) << token << " at " << temperature;
    }
  }
}

TEST_F(SamplerTest, TopKKeepsKTokensAndBreaksTiesToTheLowerId) {
  params_.top_k = 1;
  EXPECT_THAT(Seen(), ElementsAre(3));
  params_.top_k = 3;
  EXPECT_THAT(Seen(), ElementsAre(3, 4, 7));
  params_.top_k = 100;
  EXPECT_EQ(Seen(20000).size(), 8u);
}

// A token is drawn by its place among the candidates, which is the order of ids whatever finds
// them.
TEST_F(SamplerTest, TopKThatKeepsAllThatCountChangesNoDraw) {
  logits_[2] = -1000;
  std::vector<int32_t> free, kept;
  for (int i = 0; i < 200; ++i) free.push_back(Sample(i).token);
  params_.top_k = 7;
  for (int i = 0; i < 200; ++i) kept.push_back(Sample(i).token);
  EXPECT_EQ(kept, free);
}

TEST_F(SamplerTest, TopPKeepsTheSmallestSetThatReachesIt) {
  const double two = Probability(3) + Probability(4);
  params_.top_p = static_cast<float>(two) - 0.001f;
  EXPECT_THAT(Seen(), ElementsAre(3, 4));
  params_.top_p = static_cast<float>(two) + 0.001f;
  EXPECT_THAT(Seen(), ElementsAre(3, 4, 7));
  params_.top_p = 1e-6f;
  EXPECT_THAT(Seen(), ElementsAre(3));
}

TEST_F(SamplerTest, TopPCountsWhatTopKLeft) {
  params_.top_k = 2;
  params_.top_p = 0.4f;  // Each of the two has one half.
  EXPECT_THAT(Seen(), ElementsAre(3));
  params_.top_p = 0.6f;
  EXPECT_THAT(Seen(), ElementsAre(3, 4));
}

TEST_F(SamplerTest, MinPIsRelativeToTheLikeliestTokenAfterTemperature) {
  params_.min_p = 0.5f;  // e^(2.5 - 3) = 0.61, e^(2 - 3) = 0.37.
  EXPECT_THAT(Seen(), ElementsAre(3, 4, 7));
  params_.temperature = 2;  // e^(-1/2) = 0.61.
  EXPECT_THAT(Seen(), ElementsAre(1, 3, 4, 7));
}

TEST_F(SamplerTest, LogitBiasMovesTheChoice) {
  params_.logit_bias = {{2, 100}, {3, -100}};
  EXPECT_EQ(Greedy(), 2);
}

TEST_F(SamplerTest, RepetitionPenaltyCoversPromptAndEmittedOnceEach) {
  context_.prompt = {3, 3, 3};
  params_.repetition_penalty = 1.25f;
  EXPECT_EQ(Greedy(), 4);  // 3 / 1.25 = 2.4.
  emitted_ = {4, 4};
  EXPECT_EQ(Greedy(), 7);
  logits_ = {-1, -1.1f, -5, -5, -5, -5, -5, -5};
  context_.prompt = {0};
  emitted_ = {};
  EXPECT_EQ(Greedy(), 1);  // A negative logit is multiplied: -1.25.
}

TEST_F(SamplerTest, ATokenThatCameOftenIsPenalizedOnceAndInEveryStep) {
  logits_ = {3, 2, 2.5f, -5, -5, -5, -5, -5};
  params_.repetition_penalty = 1.25f;
  context_.prompt = {0, 0, 0, 2};
  emitted_ = {0};
  for (int step = 0; step < 3; ++step) EXPECT_EQ(Greedy(), 0) << step;  // 3 / 1.25 = 2.4.
  logits_[1] = 2.45f;
  for (int step = 0; step < 3; ++step) EXPECT_EQ(Greedy(), 1) << step;
}

TEST_F(SamplerTest, FrequencyPenaltyCountsAndPresencePenaltyDoesNot) {
  context_.prompt = {3, 4, 7};  // Does not count.
  emitted_ = {3, 3, 4};
  params_.frequency_penalty = 0.2f;
  EXPECT_EQ(Greedy(), 4);  // 3: 2.6, 4: 2.8.
  params_.frequency_penalty = 0;
  params_.presence_penalty = 0.4f;
  EXPECT_EQ(Greedy(), 3);  // Both 2.6.
  params_.presence_penalty = 0.6f;
  EXPECT_EQ(Greedy(), 7);  // Both 2.4.
}

TEST_F(SamplerTest, PenaltiesLeaveNothingBehindForTheNextSequence) {
  context_.prompt = {3};
  params_.repetition_penalty = 2;
  params_.presence_penalty = 2;
  emitted_ = {3, 4};
  EXPECT_EQ(Greedy(), 7);
  context_.prompt.clear();
  emitted_.clear();
  EXPECT_EQ(Greedy(), 3);
}

TEST_F(SamplerTest, EndTokensCannotComeBeforeMinTokens) {
  logits_[kEos] = 9;
  logits_[5] = 8;
  params_.stop_token_ids = {5};
  params_.min_tokens = 2;
  emitted_ = {0};
  EXPECT_EQ(Greedy(), 3);
  emitted_ = {0, 0};
  EXPECT_EQ(Greedy(), kEos);
  emitted_ = {0};
  params_.ignore_eos = true;  // The model's end tokens are then tokens like others.
  EXPECT_EQ(Greedy(), kEos);
}

TEST_F(SamplerTest, MaskWinsOverBias) {
  params_.logit_bias = {{kEos, 100}};
  params_.min_tokens = 1;
  EXPECT_EQ(Greedy(), 3);
}

TEST_F(SamplerTest, LogprobsAreOfTheRawDistribution) {
  params_.num_logprobs = 3;
  params_.logit_bias = {{2, 100}};
  params_.temperature = 0.3f;
  const TokenOutput output = Sample(12);
  EXPECT_EQ(output.position, 12);
  EXPECT_EQ(output.token, 2);
  EXPECT_NEAR(output.logprob, std::log(Probability(2)), 1e-6);
  ASSERT_EQ(output.top.size(), 3u);
  EXPECT_EQ(output.top[0].token, 3);
  EXPECT_EQ(output.top[1].token, 4);
  EXPECT_EQ(output.top[2].token, 7);
  EXPECT_NEAR(output.top[2].logprob, std::log(Probability(7)), 1e-6);
  EXPECT_EQ(output.finish, FinishReason::kNone);
}

TEST_F(SamplerTest, DigestIsThatOfTheRawRow) {
  params_.logits_digest = true;
  params_.logit_bias = {{2, 1}};
  EXPECT_EQ(Sample().logits_digest, XXH3_64bits(logits_.data(), logits_.size() * 4));
}

TEST_F(SamplerTest, ScoreRanksTheTokenAndBreaksTiesToTheLowerId) {
  EXPECT_EQ(sampler_.Score(logits_, 3, 5, 0).rank, 1);
  EXPECT_EQ(sampler_.Score(logits_, 4, 5, 0).rank, 2);
  const PromptLogprob score = sampler_.Score(logits_, 2, 5, 2);
  EXPECT_EQ(score.rank, 8);
  EXPECT_EQ(score.position, 5);
  EXPECT_EQ(score.token, 2);
  EXPECT_NEAR(score.logprob, std::log(Probability(2)), 1e-6);
  EXPECT_EQ(score.top.size(), 2u);
  EXPECT_EQ(sampler_.Score(logits_, 2, 5, 50).top.size(), 8u);
}

// A row as long as a large vocabulary's, against plain loops in double.
TEST_F(SamplerTest, ARowOfALargeVocabularyIsReadAsPlainLoopsReadIt) {
  constexpr int32_t kVocab = 151936;
  Random random(9);
  std::vector<float> logits(kVocab);
  for (float& x : logits) x = static_cast<float>((random.Unit() + random.Unit() - 1) * 15);
  logits[70000] = logits[150000] = 15.5f;
  HostSampler sampler(kernels_.get(), {kEos});
  params_.num_logprobs = 20;
  const auto sample = [&](int32_t position) {
    return sampler.Sample({.logits = logits, .context = &context_, .position = position});
  };
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x} - 15.5);
  const double log_sum = 15.5 + std::log(sum);
  std::vector<int32_t> order(kVocab);
  for (int32_t i = 0; i < kVocab; ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  for (int32_t position = 0; position < 20; ++position) {
    params_.top_k = position % 2 == 0 ? 0 : 50;
    const TokenOutput output = sample(position);
    EXPECT_NEAR(output.logprob, logits[output.token] - log_sum, 2e-6);
    ASSERT_EQ(output.top.size(), 20u);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(output.top[i].token, order[i]);
      EXPECT_NEAR(output.top[i].logprob, logits[order[i]] - log_sum, 2e-6);
    }
    if (params_.top_k == 50) {
      EXPECT_NE(std::find(order.begin(), order.begin() + 50, output.token), order.begin() + 50);
    }
  }
  params_.temperature = 0;
  EXPECT_EQ(sample(0).token, 70000);
  for (const int32_t rank : {1, 2, 500, 100000}) {
    const PromptLogprob score = sampler.Score(logits, order[rank - 1], 1, 0);
    EXPECT_EQ(score.rank, rank);
    EXPECT_NEAR(score.logprob, logits[order[rank - 1]] - log_sum, 2e-6);
  }
}

TEST_F(SamplerTest, ExtremeParametersStillChooseAToken) {
  params_.temperature = 1e-30f;
  EXPECT_EQ(Sample().token, 3);
  params_.temperature = 1;
  params_.min_p = 1;
  EXPECT_THAT(Seen(), ElementsAre(3, 4));
  params_.stop_token_ids = {0, 1, 2, 3, 4, 5, 6, 7};
  params_.min_tokens = 1;
  EXPECT_EQ(Sample().token, 0);
}

}  // namespace
}  // namespace baton
