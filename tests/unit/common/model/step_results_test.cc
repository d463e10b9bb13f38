#include "common/model/step_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/select_kernel_set.h"
#include "tests/kernels/host_sampler.h"
#include "tests/kernels/kernel_sets.h"
#include "tests/late_device/late_device.h"
#include "tests/unit/common/model/results_harness.h"

namespace baton {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(StepResultsTest, NeitherThreadsNorKernelSetsChangeABit) {
  const ResultsProblem problem(1);
  const auto expected = ReadOnCpu(problem, {.kernels = "portable"});
  for (const int threads : {2, 3, 7}) {
    EXPECT_EQ(Difference(ReadOnCpu(problem, {.kernels = "portable", .num_threads = threads}),
                         expected), "") << threads;
  }
  for (const std::string& set : KernelSets()) {
    EXPECT_EQ(Difference(ReadOnCpu(problem, {.kernels = set, .num_threads = 2}), expected), "")
        << set;
  }
}

TEST(StepResultsTest, EachRowIsWhatASamplerSaysOfItAlone) {
  ResultsProblem problem(2);
  const auto results = ReadOnCpu(problem, {.num_threads = 3});
  const auto kernels = *MakeCpuKernels({});
  HostSampler sampler(kernels.get(), problem.info().eos_token_ids);
  int64_t next = 0;
  for (size_t r = 0; r < problem.plan.rows.size(); ++r) {
    const StepRow& row = problem.plan.rows[r];
    EXPECT_EQ(results[r].sequence, row.sequence);
    EXPECT_EQ(results[r].sampled, row.sample);
    const SamplingParams& params = row.sampling->params;
    const bool scores = params.num_prompt_logprobs >= 0;
    ASSERT_EQ(results[r].prompt_logprobs.size(), scores ? 20u : 0u);
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      const bool last = i + 1 == row.tokens.size();
      if (!scores && !(row.sample && last)) continue;
      const std::span<float> logits = problem.row(next++);
      const auto position = row.context_len + static_cast<int32_t>(i) + 1;
      if (scores) {
        EXPECT_EQ(results[r].prompt_logprobs[i],
                  sampler.Score(logits, row.sampling->prompt[position], position,
                                params.num_prompt_logprobs));
      }
      if (row.sample && last) {
        EXPECT_EQ(results[r].output, sampler.Sample({.logits = logits,
                                                     .context = row.sampling.get(),
                                                     .emitted = row.emitted,
                                                     .num_emitted = row.num_emitted,
                                                     .position = position}));
      }
    }
  }
  EXPECT_EQ(next, problem.num_logit_rows());
}

// Counts the rows that go to the CPU's operators, and how.
class CountingKernels : public CpuKernels {
 public:
  CountingKernels() : CpuKernels(*SelectKernelSet("auto"), 2) {}
  void ParallelFor(int64_t num_tasks, ThreadPool::Body body) override {
    num_rows += num_tasks;
    ++num_calls;
    CpuKernels::ParallelFor(num_tasks, body);
  }
  int64_t num_rows = 0;
  int64_t num_calls = 0;
};

TEST(StepResultsTest, RowsOfASliceGoToThePoolAtOnce) {
  ResultsProblem problem(3);
  CountingKernels kernels;
  CpuDevice device(&kernels);
  const auto results = *StepResults::Create(device, kernels, problem.info(), {});
  Read(*results, device, problem);
  int64_t num_scores = 0, num_samples = 0;
  for (const StepRow& row : problem.plan.rows) {
    num_samples += row.sample ? 1 : 0;
    num_scores += row.sampling->params.num_prompt_logprobs >= 0 ? 20 : 0;
  }
  EXPECT_EQ(kernels.num_rows, num_samples + num_scores);
  const int64_t slices = (problem.num_logit_rows() + 31) / 32;
  EXPECT_LE(kernels.num_calls, 2 * slices);
}

// One StepResults for several steps: what one leaves behind is not the next one's.
TEST(StepResultsTest, ADeviceOfItsOwnMemoryGivesTheCpusResults) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    for (const int64_t slice : {8, 33, 400}) {
      LateDevice device({.seed = seed, .only_when_asked = seed % 2 == 0, .logit_rows = slice});
      const Processors cpu = *MakeDevice({});
      const auto results = *StepResults::Create(device, *cpu.host, ResultsProblem::info(),
                                                ResultsProblem::kCapacity);
      for (const int32_t rows : {70, 3, 40}) {
        const ResultsProblem problem(seed * 100 + static_cast<uint64_t>(rows), rows);
        EXPECT_EQ(Difference(Read(*results, device, problem), ReadOnCpu(problem)), "")
            << seed << ' ' << slice << ' ' << rows;
      }
    }
  }
}

TEST(StepResultsTest, OnlyWhatADeviceCannotEndGoesToTheCpu) {
  LateDevice device({.logit_rows = 16});
  CountingKernels cpu;
  const auto results = *StepResults::Create(device, cpu, ResultsProblem::info(),
                                            ResultsProblem::kCapacity);
  const ResultsProblem problem(5);
  Read(*results, device, problem);
  int64_t expected = 0;
  for (const StepRow& row : problem.plan.rows) {
    const SamplingParams& params = row.sampling->params;
    if (row.sample && (params.logits_digest || params.num_logprobs > 20)) ++expected;
    if (params.num_prompt_logprobs > 20) expected += 20;
  }
  EXPECT_GT(expected, 60);
  EXPECT_EQ(cpu.num_rows, expected);
}

// A step's penalties of more tokens than a device has room for.
TEST(StepResultsTest, RowsWhoseListsHaveNoRoomGoToTheCpu) {
  ResultsProblem problem(6, 12);
  for (const size_t r : {2, 4, 8}) {
    auto context = std::make_shared<SamplingContext>(*problem.plan.rows[r].sampling);
    context->params.repetition_penalty = 1.3f;
    context->prompt.resize(StepResults::kListBytes / 4 * 3 / 5);
    std::iota(context->prompt.begin(), context->prompt.end(), 0);
    for (int32_t& token : context->prompt) token = token * 7 % 50;
    problem.plan.rows[r].sampling = std::move(context);
  }
  LateDevice device({.seed = 1});
  CountingKernels cpu;
  const auto results = *StepResults::Create(device, cpu, ResultsProblem::info(),
                                            ResultsProblem::kCapacity);
  EXPECT_EQ(Difference(Read(*results, device, problem), ReadOnCpu(problem)), "");
  // Two of the three, a digest, a row and twenty scores with too many alternatives.
  EXPECT_EQ(cpu.num_rows, 2 + 1 + 1 + 20);
  // The next step has all of the room again.
  EXPECT_EQ(Difference(Read(*results, device, problem), ReadOnCpu(problem)), "");
  EXPECT_EQ(cpu.num_rows, 2 * (2 + 1 + 1 + 20));
}

// Of a vocabulary smaller than the alternatives that are asked for, on both kinds of device.
TEST(StepResultsTest, ThereAreNoMoreAlternativesThanTokens) {
  constexpr int32_t kVocab = 6;
  const ModelInfo info{.vocab_size = kVocab, .eos_token_ids = {0}};
  auto context = std::make_shared<SamplingContext>();
  context->prompt = {1, 2, 3};
  context->params.temperature = 0;
  context->params.num_logprobs = context->params.num_prompt_logprobs = 20;
  StepPlan plan;
  plan.rows.push_back(
      {.tokens = context->prompt, .block_table = {0}, .sample = true, .sampling = context});
  const std::vector<float> logits = {5, 4, 3, 2, 1, 0, 0, 1, 2, 3, 4, 5, 3, 3, 3, 9, 3, 3};
  const Processors cpu = *MakeDevice({});
  LateDevice late({});
  for (Device* const device : {cpu.device.get(), static_cast<Device*>(&late)}) {
    const auto results = *StepResults::Create(*device, *cpu.host, info, {3, 1, 1});
    results->Build(plan);
    const Buffer pinned = *late.Allocate(sizeof(CopyPiece), MemoryKind::kPinned);
    *pinned.array<CopyPiece>() = results->upload();
    if (device == &late) {
      ASSERT_TRUE(late.CopyPieces(Lane::kCompute, {pinned.array<CopyPiece>(), 1}).ok());
    }
    const Buffer there = *CopyToDevice(*device, std::as_bytes(std::span(logits)));
    ASSERT_TRUE(results->Enqueue(0, 3, there.floats(DType::kF32)).ok());
    Await(*device);
    ASSERT_TRUE(results->Finish().ok());
    const std::vector<RowResult> rows = results->Take();
    EXPECT_EQ(rows[0].status, absl::OkStatus());
    EXPECT_EQ(rows[0].output.token, 3);
    const auto tokens = [](const std::vector<TokenLogprob>& top) {
      std::vector<int32_t> ids;
      for (const TokenLogprob& one : top) ids.push_back(one.token);
      return ids;
    };
    EXPECT_THAT(tokens(rows[0].output.top), testing::ElementsAre(3, 0, 1, 2, 4, 5));
    ASSERT_EQ(rows[0].prompt_logprobs.size(), 2u);
    EXPECT_THAT(tokens(rows[0].prompt_logprobs[1].top), testing::ElementsAre(5, 4, 3, 2, 1, 0));
  }
}

// Of a sampled row, of one score among many, and of the last row; on both kinds of device.
TEST(StepResultsTest, LogitsThatAreNoDistributionAreAnErrorOfTheirRowAlone) {
  ResultsProblem problem(7);
  const std::vector<float> good = problem.logits;
  const auto expected = ReadOnCpu(problem);
  LateDevice device({.seed = 2});
  const Processors cpu = *MakeDevice({});
  const auto results = *StepResults::Create(device, *cpu.host, ResultsProblem::info(),
                                            ResultsProblem::kCapacity);
  struct Bad {
    int64_t logit_row;
    size_t row;
    int32_t position;
  };
  // Row 0 does not sample; row 6 has 20 tokens that are scored.
  const auto last = problem.plan.rows.size() - 1;
  for (const Bad& bad : {Bad{1, 2, 41}, Bad{4, 5, 41}, Bad{10, 6, 16},
                         Bad{problem.num_logit_rows() - 1, last, 41}}) {
    for (const float value : {std::nanf(""), kInfinity, -kInfinity}) {
      problem.logits = good;
      problem.row(bad.logit_row).back() = value;
      if (value == -kInfinity) std::ranges::fill(problem.row(bad.logit_row), value);
      for (auto read : {ReadOnCpu(problem), Read(*results, device, problem)}) {
        EXPECT_EQ(read[bad.row].status.code(), absl::StatusCode::kInternal) << value;
        EXPECT_THAT(read[bad.row].status.message(),
                    testing::HasSubstr(absl::StrCat("position ", bad.position)));
        read[bad.row] = expected[bad.row];
        EXPECT_EQ(Difference(read, expected), "") << bad.row;
      }
    }
  }
}

TEST(StepResultsTest, MaskedTokensAreNoError) {
  ResultsProblem problem(8);
  std::ranges::fill(problem.logits, -kInfinity);
  for (int64_t i = 0; i < problem.num_logit_rows(); ++i) problem.row(i)[i] = -1;
  for (const RowResult& result : ReadOnCpu(problem)) EXPECT_EQ(result.status, absl::OkStatus());
}

TEST(StepResultsTest, NothingIsAllocatedOfADeviceInAStep) {
  LateDevice device({});
  const Processors cpu = *MakeDevice({});
  const auto results = *StepResults::Create(device, *cpu.host, ResultsProblem::info(),
                                            ResultsProblem::kCapacity);
  const ResultsProblem problem(9);
  results->Build(problem.plan);
  const int64_t before = device.num_allocations();
  Read(*results, device, problem);
  // The test's own: the list of pieces, and of each slice its logits with their staging.
  const int64_t slices = (problem.num_logit_rows() + 31) / 32;
  EXPECT_EQ(device.num_allocations(), before + 1 + 2 * slices);
}

}  // namespace
}  // namespace baton
