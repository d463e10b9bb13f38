#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "common/base/sampling.h"
#include "kernels/api/sample_args.h"
#include "kernels/cpu/sampling/row_math.h"

namespace baton {

// A token to be chosen, and what there is to choose from.
struct SampleProblem {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<int32_t> prompt, emitted, end_tokens;
  int32_t position = 0;

  int32_t vocab_size() const { return static_cast<int32_t>(logits.size()); }
  bool masks() const { return std::ssize(emitted) < params.min_tokens; }
};

struct ChosenToken {
  SampleResult result;
  std::vector<std::pair<int32_t, float>> top;
  bool operator==(const ChosenToken&) const = default;
};

// What kernels/api/sample_args.h says, by sorting, a step after the other. Slow and plain.
class SampleOracle {
 public:
  SampleOracle(const RowMath* math, const SampleProblem& problem)
      : math_(math), problem_(problem), params_(problem.params), x_(problem.logits) {}

  ChosenToken Choose() {
    ChosenToken chosen;
    if (IsBad()) {
      chosen.result.is_bad = 1;
      return chosen;
    }
    if (params_.num_logprobs >= 0) {
      const std::vector<int32_t> order = ByLogit();
      chosen.result.max = x_[order[0]];
      for (const float x : x_) chosen.result.sum += WeightOf(x, chosen.result.max, 1);
      for (int i = 0; i < std::min(params_.num_logprobs, problem_.vocab_size()); ++i) {
        chosen.top.emplace_back(order[i], x_[order[i]]);
      }
    }
    Adjust();
    if (std::ranges::any_of(x_, [](float x) { return std::isnan(x); })) {
      return {.result = {.is_bad = 1}, .top = {}};
    }
    const int32_t best = ByLogit()[0];
    const bool draws = params_.temperature > 0 && std::isfinite(x_[best]);
    chosen.result.token = draws ? Draw() : best;
    chosen.result.token_logit = problem_.logits[chosen.result.token];
    return chosen;
  }

  ScoreResult Score(int32_t token) {
    ScoreResult score;
    score.is_bad = IsBad() ? 1 : 0;
    if (score.is_bad != 0) return score;
    const std::vector<int32_t> order = ByLogit();
    score.token_logit = x_[token];
    score.max = x_[order[0]];
    score.rank = 1 + static_cast<int32_t>(std::ranges::find(order, token) - order.begin());
    for (const float x : x_) score.sum += WeightOf(x, score.max, 1);
    return score;
  }

 private:
  using Wide = unsigned __int128;

  bool IsBad() const {
    const bool is_below = std::ranges::all_of(x_, [](float x) { return x < INFINITY; });
    return !is_below || std::ranges::none_of(x_, [](float x) { return x > -INFINITY; });
  }
  uint64_t WeightOf(float x, float max, double temperature) const {
    uint64_t weight = 0;
    math_->weights(&x, 1, max, 1.44269504088896338700 / temperature, &weight);
    return weight;
  }
  // The likeliest first, of equals the lower id.
  std::vector<int32_t> ByLogit() const {
    std::vector<int32_t> ids(x_.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) { return x_[a] > x_[b]; });
    return ids;
  }
  void Adjust() {
    for (const LogitBias& bias : params_.logit_bias) x_[bias.token] += bias.bias;
    if (problem_.masks()) {
      for (const int32_t token : problem_.end_tokens) {
        if (token >= 0 && token < problem_.vocab_size()) x_[token] = -INFINITY;
      }
    }
    for (int32_t token = 0; token < problem_.vocab_size(); ++token) {
      const auto emitted = std::ranges::count(problem_.emitted, token);
      if (emitted + std::ranges::count(problem_.prompt, token) > 0) {
        const float penalty = params_.repetition_penalty;
        x_[token] = x_[token] > 0 ? x_[token] / penalty : x_[token] * penalty;
      }
      if (emitted == 0) continue;
      x_[token] -= params_.frequency_penalty * static_cast<float>(emitted);
      x_[token] -= params_.presence_penalty;
    }
  }
  int32_t Draw() const {
    const std::vector<int32_t> order = ByLogit();
    const int32_t top_k = params_.top_k > 0 ? params_.top_k : problem_.vocab_size();
    const double least = std::llround(params_.min_p * 0x1p44);
    std::vector<std::pair<uint64_t, int32_t>> kept;  // Weight and id.
    uint64_t sum = 0;
    for (int i = 0; i < std::min(top_k, problem_.vocab_size()); ++i) {
      const uint64_t weight = WeightOf(x_[order[i]], x_[order[0]], params_.temperature);
      if (static_cast<double>(weight) < least) continue;
      kept.emplace_back(weight, order[i]);
      sum += weight;
    }
    if (params_.top_p < 1) KeepTopP(kept, sum);
    std::ranges::sort(kept, {}, [](const auto& token) { return token.second; });
    const uint64_t key = MakeSampleRow(params_, problem_.position).key;
    uint64_t left = static_cast<uint64_t>(Wide{key} * sum >> 64);
    size_t i = 0;
    for (; left >= kept[i].first; ++i) left -= kept[i].first;
    return kept[i].second;
  }
  void KeepTopP(std::vector<std::pair<uint64_t, int32_t>>& kept, uint64_t& sum) const {
    std::ranges::sort(kept, [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    const Wide wanted = Wide{MakeSampleRow(params_, 0).top_p} * sum;  // In units of 2^-63.
    sum = 0;
    size_t count = 0;
    while (count == 0 || Wide{sum} << 63 < wanted) sum += kept[count++].first;
    kept.resize(count);
  }

  const RowMath* math_;
  const SampleProblem& problem_;
  const SamplingParams& params_;
  std::vector<float> x_;
};

// Logits of many kinds: spread, with ties, nearly alone, masked, huge and tiny.
inline std::vector<float> RandomLogits(Random& random, int32_t vocab_size) {
  std::vector<float> logits(vocab_size);
  const uint64_t kind = random.Below(7);
  for (float& x : logits) {
    x = static_cast<float>(random.Unit() * 20 - 10);
    if (kind == 1) x = std::round(x);                          // Some 20 values.
    if (kind == 2) x = random.Below(2) == 0 ? 0.0f : -0.0f;    // All equal.
    if (kind == 3) x = random.Below(8) == 0 ? x : -INFINITY;       // Most are masked.
    if (kind == 4) x *= 1e37f;
    if (kind == 5) x *= 1e-44f;
    if (kind == 6) x = x * x * x / 100;
  }
  logits[random.Below(vocab_size)] = 3;  // At least one is finite.
  return logits;
}

template <typename T>
T OneOf(Random& random, const std::vector<T>& values) {
  return values[random.Below(values.size())];
}

inline std::vector<int32_t> RandomTokens(Random& random, int32_t vocab_size, uint64_t count) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(vocab_size));
  return tokens;
}

inline SampleProblem RandomProblem(Random& random, int32_t vocab_size) {
  SampleProblem problem{.logits = RandomLogits(random, vocab_size)};
  SamplingParams& p = problem.params;
  p.temperature = OneOf<float>(random, {0, 0.1f, 0.7f, 1, 1, 1.7f, 100, 1e-6f});
  p.top_k = OneOf<int32_t>(random, {0, 0, 1, 2, 5, 40, vocab_size - 1, vocab_size + 5});
  p.top_p = OneOf<float>(random, {1, 1, 0.95f, 0.9f, 0.5f, 1e-3f, FLT_MIN, 1 - 0x1p-24f});
  p.min_p = OneOf<float>(random, {0, 0, 0, 0.05f, 0.5f, 1, 1e-7f, 1e-20f});
  p.num_logprobs = OneOf<int32_t>(random, {-1, -1, 0, 1, 5, 20});
  p.seed = random.Next();
  if (random.Below(3) == 0) {
    p.repetition_penalty = OneOf<float>(random, {1, 1.3f, 0.7f});
    p.frequency_penalty = OneOf<float>(random, {0, 0.3f, -1.1f});
    p.presence_penalty = OneOf<float>(random, {0, 0.7f, -0.4f});
    problem.prompt = RandomTokens(random, vocab_size, random.Below(40));
    problem.emitted = RandomTokens(random, std::min(vocab_size, 10), random.Below(40));
  }
  if (random.Below(4) == 0) {
    const auto middle = static_cast<int32_t>(random.Below(vocab_size));
    p.logit_bias = {{middle, OneOf<float>(random, {-100, 2.5f, 100})}};
    if (middle > 0) p.logit_bias.insert(p.logit_bias.begin(), {0, -1.25f});
  }
  if (random.Below(4) == 0) {
    p.min_tokens = OneOf<int32_t>(random, {1, 100});
    problem.end_tokens = RandomTokens(random, vocab_size, 3);
    problem.end_tokens.push_back(problem.end_tokens[0]);
  }
  problem.position = static_cast<int32_t>(random.Below(1000));
  return problem;
}

}  // namespace baton
