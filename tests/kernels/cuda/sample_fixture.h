#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/sample.h"
#include "tests/kernels/cuda/device_fixture.h"
#include "tests/kernels/host_sampler.h"
#include "tests/kernels/sample_problem.h"

namespace baton::cuda {

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
      if (key_ != 0) lists.rows.back().key = key_;
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

  // A block for each row, or so many parts of each; as Sample has it, if there is scratch memory.
  cudaError_t Launch(const SampleArgs& args) {
    if (scratch_ != nullptr) {
      return Sample(args, {static_cast<float*>(scratch_->data()), scratch_->size() / sizeof(float)},
                    nullptr);
    }
    if (parts_ == 0) return Sample(args, {}, nullptr);
    // What a launch left behind: a short list, something in each bin.
    const DeviceArray<int32_t> scratch(
        std::vector<int32_t>(static_cast<size_t>(SampleScratchBytes(args)) / sizeof(int32_t), 3));
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
  uint64_t key_ = 0;  // Instead of the rows' own, if not 0.
  std::unique_ptr<DeviceBytes> scratch_;
  std::unique_ptr<CpuKernels> cpu_ = MakeTestKernels("portable");
  const RowMath* math_ = &cpu_->row_math();
};

// Blocks that have whole rows, or parts of them.
class EachWayTest : public SampleTest, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    SampleTest::SetUp();
    parts_ = GetParam();
  }
};

}  // namespace baton::cuda
