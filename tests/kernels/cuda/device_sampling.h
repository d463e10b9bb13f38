#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/sample.h"
#include "tests/kernels/cuda/device_ops.h"

namespace baton::cuda {

// Sample, Score and TakeTokens of a GPU for operands of the host. As DeviceOps.
class DeviceSampling : public CpuKernels {
 public:
  struct Options {
    int parts = 0;  // Each row in so many; 0: as Sample has it, with this scratch memory.
    const DeviceBytes* scratch = nullptr;
  };
  explicit DeviceSampling(const Options& options)
      : CpuKernels(*SelectKernelSet("portable"), 1), options_(options) {}
  ~DeviceSampling() override {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << emulation::LastMessage();
  }

  absl::Status Sample(const SampleArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    // A launch of the emulation for each, in an order of its own.
    emulation::SetSeed(++seed_);
    const int64_t n = host.num_rows, vocab_size = host.vocab_size;
    int32_t num_biases = 0, num_masks = 0, num_history = 0;
    for (const SampleRow& row : std::span(host.rows, n)) {
      num_biases = std::max(num_biases, row.first_bias + row.num_bias);
      num_masks = std::max(num_masks, row.first_mask + row.num_mask);
      num_history = std::max(
          {num_history, row.first_prompt + row.num_prompt, row.first_emitted + row.num_emitted});
    }
    const There<float> logits = LogitsThere(host);
    const There<SampleRow> rows(host.rows, n);
    const There<LogitBias> biases(host.biases, num_biases);
    const There<int32_t> masks(host.masks, num_masks), history(host.history, num_history);
    const There<SampleResult> results(host.results, n);
    const TopThere top(host.top, n);
    const DeviceFloats adjusted(DType::kF32, n * vocab_size);
    const std::vector<int32_t> zeros(n * vocab_size, 0);
    const DeviceArray<int32_t> counts(zeros);
    SampleArgs args = host;
    args.logits = logits.data();
    args.rows = rows.data();
    args.biases = biases.data();
    args.masks = masks.data();
    args.history = history.data();
    args.results = results.data();
    args.top = top.there();
    args.adjusted = adjusted.f32();
    args.counts = counts.data();
    RETURN_IF_ERROR(Launch(args));
    EXPECT_EQ(counts.Read(), zeros);
    adjusted.Read();  // For its guards.
    results.CopyTo(host.results);
    top.CopyBack();
    return absl::OkStatus();
  }

  absl::Status Score(const ScoreArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    const There<float> logits = LogitsThere(host);
    const There<ScoreRow> rows(host.rows, host.num_rows);
    const There<ScoreResult> results(host.results, host.num_rows);
    const TopThere top(host.top, host.num_rows);
    ScoreArgs args = host;
    args.logits = logits.data();
    args.rows = rows.data();
    args.results = results.data();
    args.top = top.there();
    RETURN_IF_ERROR(Ended(cuda::Score(args, nullptr)));
    results.CopyTo(host.results);
    top.CopyBack();
    return absl::OkStatus();
  }

  absl::Status TakeTokens(const TakeTokensArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    int32_t num_results = 0, num_tokens = 0;
    for (const TakenToken& taken : std::span(host.taken, host.count)) {
      num_results = std::max(num_results, taken.row + 1);
      num_tokens = std::max(num_tokens, taken.to + 1);
    }
    const There<SampleResult> results(host.results, num_results);
    const There<TakenToken> taken(host.taken, host.count);
    const There<int32_t> tokens(host.tokens, num_tokens);
    TakeTokensArgs args = host;
    args.results = results.data();
    args.taken = taken.data();
    args.tokens = tokens.data();
    RETURN_IF_ERROR(Ended(cuda::TakeTokens(args, nullptr)));
    tokens.CopyTo(host.tokens);
    return absl::OkStatus();
  }

 private:
  class TopThere {
   public:
    TopThere(const TopTokens& host, int64_t rows)
        : host_(host),
          tokens_(host.tokens, rows * host.stride),
          logits_(host.logits, rows * host.stride) {}
    TopTokens there() const { return {tokens_.data(), logits_.data(), host_.stride}; }
    void CopyBack() const {
      if (host_.tokens == nullptr) return;
      tokens_.CopyTo(host_.tokens);
      logits_.CopyTo(host_.logits);
    }

   private:
    const TopTokens host_;
    There<int32_t> tokens_;
    There<float> logits_;
  };

  template <typename Args>
  static There<float> LogitsThere(const Args& host) {
    int64_t rows = 0;
    for (const auto& row : std::span(host.rows, host.num_rows)) {
      rows = std::max<int64_t>(rows, row.logit_row + 1);
    }
    return There<float>(host.logits, SpanOf(rows, host.logits_stride, host.vocab_size));
  }

  absl::Status Launch(const SampleArgs& args) const {
    if (options_.parts == 0) {
      const DeviceBytes* scratch = options_.scratch;
      const auto span = scratch == nullptr ? std::span<float>()
                                           : std::span(static_cast<float*>(scratch->data()),
                                                       scratch->size() / sizeof(float));
      return Ended(cuda::Sample(args, span, nullptr));
    }
    // What a launch left behind: a short list, something in each bin.
    const DeviceArray<int32_t> scratch(
        std::vector<int32_t>(static_cast<size_t>(SampleScratchBytes(args)) / sizeof(int32_t), 3));
    return Ended(SampleByParts(args, scratch.data(), options_.parts, nullptr));
  }

  const Options options_;
  uint64_t seed_ = 0;
};

}  // namespace baton::cuda
