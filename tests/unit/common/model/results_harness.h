#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/model/device_memory.h"
#include "common/model/step_results.h"
#include "kernels/make_device.h"

namespace baton {

// Rows of logits to be read, every way to choose or score a token in turn. The vocabulary is odd:
// every other row begins amid a unit of copies.
class ResultsProblem {
 public:
  static constexpr int32_t kVocab = 3001;
  static constexpr StepCapacity kCapacity{.max_tokens = 400, .max_rows = 80};

  explicit ResultsProblem(uint64_t seed, int32_t num_rows = 70) {
    Random random(seed);
    for (int32_t i = 0; i < num_rows; ++i) plan.rows.push_back(Row(random, i));
    Relogit(random);
  }

  static ModelInfo info() { return {.vocab_size = kVocab, .eos_token_ids = {3, 200}}; }
  int64_t num_logit_rows() const { return std::ssize(logits) / kVocab; }
  std::span<float> row(int64_t i) {
    return std::span(logits).subspan(static_cast<size_t>(i * kVocab), kVocab);
  }
  // Random logits for as many rows as the plan wants.
  void Relogit(Random& random) {
    int64_t rows = 0;
    for (const StepRow& row : plan.rows) {
      for (int64_t i = 0; i < std::ssize(row.tokens); ++i) {
        rows += ScoresPrompt(row, i) || (row.sample && i + 1 == std::ssize(row.tokens)) ? 1 : 0;
      }
    }
    logits.resize(static_cast<size_t>(rows * kVocab));
    for (float& x : logits) {
      x = static_cast<float>((random.Unit() + random.Unit() - 1) * 12);
      if (random.Below(3) == 0) x = static_cast<float>(static_cast<int>(x));  // Equal ones.
    }
  }

  StepPlan plan;
  std::vector<float> logits;

 private:
  static StepRow Row(Random& random, int32_t index) {
    auto context = std::make_shared<SamplingContext>();
    for (int32_t i = 0; i < 40; ++i) context->prompt.push_back((i * 131 + index) % kVocab);
    SamplingParams& p = context->params;
    p.seed = random.Next();
    p.num_logprobs = index % 4 == 0 ? 1 + index % 21 : index % 4 == 1 ? 0 : -1;
    p.temperature = index % 3 == 0 ? 0.0f : 0.7f + 0.1f * static_cast<float>(index % 7);
    p.top_p = index % 2 == 0 ? 0.9f : 1.0f;
    p.top_k = index % 4 == 1 ? 30 : 0;
    p.min_p = index % 5 == 2 ? 0.01f : 0.0f;
    p.repetition_penalty = index % 7 == 3 ? 1.2f : 1.0f;
    p.frequency_penalty = index % 6 == 1 ? 0.4f : 0.0f;
    p.presence_penalty = index % 6 >= 4 ? -0.3f : 0.0f;
    if (index % 9 == 4) p.logit_bias = {{index, 6.5f}, {500 + index, -3}};
    if (index % 9 == 5) p.min_tokens = 50;
    if (index % 10 == 5) p.stop_token_ids = {700 + index};
    p.num_prompt_logprobs = index % 8 == 6 ? index % 5 : -1;
    // What no device ends.
    p.logits_digest = index % 13 == 5;
    if (index % 13 == 7) p.num_logprobs = 25;
    if (index % 24 == 6) p.num_prompt_logprobs = 21;
    const bool scores = p.num_prompt_logprobs >= 0;
    StepRow row{.sequence = {.counter = uint64_t(index) + 1},
                .tokens = std::vector<int32_t>(scores ? 20 : 1, 5),
                .context_len = scores ? 10 : 40,
                .sample = index % 11 != 0,
                .num_emitted = index % 6};
    for (int32_t i = 0; i < row.num_emitted; ++i) row.emitted.push_back((index + i % 3) * 7);
    row.sampling = std::move(context);
    return row;
  }
};

inline void Await(Device& device) {
  BATON_CHECK(Wait(device, *device.MarkNow(Lane::kCompute), kDeviceLimit).ok());
}

// The rows as a step would have them read, slice after slice.
inline std::vector<RowResult> Read(StepResults& results, Device& device,
                                   const ResultsProblem& problem) {
  results.Build(problem.plan);
  BATON_CHECK(results.num_rows() == problem.num_logit_rows());
  const Buffer pinned = *device.Allocate(sizeof(CopyPiece), MemoryKind::kPinned);
  auto* const piece = pinned.array<CopyPiece>();
  *piece = results.upload();
  if (piece->bytes > 0) BATON_CHECK(device.CopyPieces(Lane::kCompute, {piece, 1}).ok());
  constexpr int64_t kVocab = ResultsProblem::kVocab;
  const int64_t slice = device.info().logit_rows;
  for (int64_t first = 0; first < results.num_rows(); first += slice) {
    const int64_t count = std::min(slice, results.num_rows() - first);
    const auto logits = std::span(problem.logits)
                            .subspan(static_cast<size_t>(first * kVocab),
                                     static_cast<size_t>(count * kVocab));
    const Buffer on_device = *CopyToDevice(device, std::as_bytes(logits));
    BATON_CHECK(results.Enqueue(first, count, on_device.floats(DType::kF32)).ok());
    Await(device);
    BATON_CHECK(results.Finish().ok());
  }
  return results.Take();
}

inline std::vector<RowResult> ReadOnCpu(const ResultsProblem& problem,
                                        const DeviceOptions& options = {}) {
  const Processors cpu = *MakeDevice(options);
  const auto results = *StepResults::Create(*cpu.device, *cpu.host, problem.info(), {});
  return Read(*results, *cpu.device, problem);
}

// How two lists of results differ, or nothing.
inline std::string Difference(const std::vector<RowResult>& a, const std::vector<RowResult>& b) {
  if (a.size() != b.size()) return "their sizes";
  for (size_t i = 0; i < a.size(); ++i) {
    const std::string row = "row " + std::to_string(i) + ": ";
    if (a[i].sequence != b[i].sequence) return row + "sequence";
    if (a[i].status != b[i].status) return row + a[i].status.ToString();
    if (!a[i].status.ok()) continue;
    if (a[i].sampled != b[i].sampled) return row + "sampled";
    if (!(a[i].output == b[i].output)) return row + "output";
    if (a[i].prompt_logprobs != b[i].prompt_logprobs) return row + "prompt_logprobs";
  }
  return "";
}

}  // namespace baton
