#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/host_sampler.h"
#include "tests/kernels/kernel_fixture.h"
#include "tests/kernels/sample_problem.h"

namespace baton {

// Whose Sample, Score and TakeTokens a body tests. A program has those of the CPU
// (sample_cases_cpu.cc) or those of a GPU (cuda/sample_cases_device.cc).
struct SampleCase {
  std::string ops;
  int parts = 0;         // Of a GPU: each row in so many; 0: a block for each row.
  int64_t budget = 0;    // Rows of random problems: so many thousands of tokens by the
                         // vocabulary and a thousand.
  int32_t long_row = 0;  // Tokens, several times what is looked at at a time.
};
std::vector<SampleCase> SampleCases();
// Those for operators that have one way.
std::vector<SampleCase> ScoreCases();

// They take operands of the host.
std::unique_ptr<CpuKernels> MakeSampleOps(const SampleCase& which);

// Rows of logits in reverse order, with NaNs between them.
class ReversedLogits {
 public:
  explicit ReversedLogits(const std::vector<const std::vector<float>*>& rows)
      : stride_(std::ssize(*rows[0]) + 3),
        num_rows_(static_cast<int32_t>(rows.size())),
        values_(rows.size() * stride_, NAN) {
    for (size_t i = 0; i < rows.size(); ++i) {
      std::ranges::copy(*rows[i], values_.begin() + RowOf(i) * stride_);
    }
  }
  const float* data() const { return values_.data(); }
  int64_t stride() const { return stride_; }
  int32_t RowOf(size_t i) const { return num_rows_ - 1 - static_cast<int32_t>(i); }

 private:
  const int64_t stride_;
  const int32_t num_rows_;
  std::vector<float> values_;
};

// The lists that rows point into, one behind the other, as the builder of a step makes them.
struct RowLists {
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

// Problems of one vocabulary in one call, beside an oracle that sorts.
class Choosing {
 public:
  explicit Choosing(std::unique_ptr<CpuKernels> ops) : ops_(std::move(ops)) {}

  // `key`: instead of the rows' own, if not 0.
  std::vector<ChosenToken> Choose(const std::vector<SampleProblem>& problems, uint64_t key = 0) {
    std::vector<const std::vector<float>*> logits;
    for (const auto& problem : problems) logits.push_back(&problem.logits);
    const ReversedLogits rows(logits);
    RowLists lists;
    int64_t stride = 1;
    for (size_t i = 0; i < problems.size(); ++i) {
      lists.Add(problems[i], rows.RowOf(i));
      if (key != 0) lists.rows.back().key = key;
      stride = std::max<int64_t>(stride, problems[i].params.num_logprobs);
    }
    const size_t size = problems.size();
    std::vector<SampleResult> results(size, {.token = -7});
    std::vector<int32_t> top_tokens(size * stride, -7);
    std::vector<float> top_logits(size * stride, -7);
    EXPECT_EQ(ops_->Sample({.logits = rows.data(),
                            .logits_stride = rows.stride(),
                            .vocab_size = problems[0].vocab_size(),
                            .rows = lists.rows.data(),
                            .num_rows = static_cast<int64_t>(size),
                            .biases = lists.biases.data(),
                            .masks = lists.masks.data(),
                            .history = lists.history.data(),
                            .results = results.data(),
                            .top = {top_tokens.data(), top_logits.data(), stride}}),
              absl::OkStatus());
    std::vector<ChosenToken> chosen;
    for (size_t i = 0; i < size; ++i) {
      chosen.push_back({results[i], {}});
      for (size_t j = i * stride; j < (i + 1) * stride && top_tokens[j] != -7; ++j) {
        chosen[i].top.emplace_back(top_tokens[j], top_logits[j]);
      }
    }
    return chosen;
  }

  std::vector<ChosenToken> Oracle(const std::vector<SampleProblem>& problems) const {
    std::vector<ChosenToken> expected;
    for (const SampleProblem& p : problems) expected.push_back(SampleOracle(math_, p).Choose());
    return expected;
  }

  std::vector<ChosenToken> ExpectAsTheOracle(const std::vector<SampleProblem>& problems) {
    return ExpectAs(Oracle(problems), problems);
  }
  std::vector<ChosenToken> ExpectAs(const std::vector<ChosenToken>& expected,
                                    const std::vector<SampleProblem>& problems) {
    const std::vector<ChosenToken> chosen = Choose(problems);
    for (size_t i = 0; i < problems.size(); ++i) {
      SCOPED_TRACE("row " + std::to_string(i));
      EXPECT_EQ(chosen[i].result.token, expected[i].result.token);
      EXPECT_EQ(chosen[i].result.sum, expected[i].result.sum);
      EXPECT_EQ(chosen[i].result.is_bad, expected[i].result.is_bad);
      EXPECT_TRUE(chosen[i] == expected[i]);  // Of zeros the sign may differ: == of floats.
      if (expected[i].result.is_bad == 0) ExpectAsTheSampler(chosen[i], problems[i]);
    }
    return chosen;
  }

  CpuKernels* ops() const { return ops_.get(); }
  CpuKernels* cpu() const { return cpu_.get(); }
  const RowMath* math() const { return math_; }

 private:
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

  const std::unique_ptr<CpuKernels> ops_;
  const std::unique_ptr<CpuKernels> cpu_ = MakeTestKernels("portable");
  const RowMath* const math_ = &cpu_->row_math();
};

class SampleCaseTest : public testing::TestWithParam<SampleCase>, protected Choosing {
 protected:
  SampleCaseTest() : Choosing(MakeSampleOps(GetParam())) {}
};

inline std::string NameOfSampleCase(const testing::TestParamInfo<SampleCase>& info) {
  const int parts = info.param.parts;
  return info.param.ops + (parts == 0 ? "" : "_in_" + std::to_string(parts));
}

}  // namespace baton
