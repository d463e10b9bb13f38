#include "common/model/row_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/make_device.h"
#include "tests/kernels/kernel_sets.h"

namespace baton {
namespace {

constexpr int32_t kVocab = 5000;

std::vector<float> Logits(int64_t rows) {
  Random random(11);
  std::vector<float> logits(rows * kVocab);
  for (float& x : logits) x = static_cast<float>((random.Unit() + random.Unit() - 1) * 12);
  return logits;
}

// Every way to choose a token, in turn.
std::shared_ptr<SamplingContext> Context(int32_t index) {
  auto context = std::make_shared<SamplingContext>();
  SamplingParams& params = context->params;
  for (int32_t i = 0; i < 40; ++i) context->prompt.push_back((i * 131 + index) % kVocab);
  params.seed = index;
  params.num_logprobs = index % 4 == 0 ? 20 : -1;
  params.logits_digest = index % 5 == 0;
  params.temperature = index % 3 == 0 ? 0.0f : 0.7f + 0.1f * static_cast<float>(index % 7);
  params.top_p = index % 2 == 0 ? 0.9f : 1.0f;
  params.top_k = index % 4 == 1 ? 30 : 0;
  params.min_p = index % 5 == 2 ? 0.01f : 0.0f;
  params.repetition_penalty = index % 7 == 3 ? 1.2f : 1.0f;
  params.num_prompt_logprobs = index % 8 == 6 ? 3 : -1;
  return context;
}

// Rows that sample, and prompts whose tokens are scored.
StepPlan Plan() {
  StepPlan plan;
  for (int32_t i = 0; i < 70; ++i) {
    StepRow row{.sequence = {.counter = uint64_t(i) + 1}, .sampling = Context(i)};
    const bool scores = row.sampling->params.num_prompt_logprobs >= 0;
    row.context_len = scores ? 10 : 40;
    row.tokens.assign(scores ? 20 : 1, 5);
    row.sample = i % 11 != 0;
    plan.rows.push_back(std::move(row));
  }
  return plan;
}

std::vector<RowResult> ReadWith(const StepPlan& plan, const std::string& set, int threads) {
  const auto kernels = *MakeKernels({.kernels = set, .num_threads = threads});
  RowReader reader(kernels.get(), kVocab, {3});
  std::vector<RowResult> results;
  const std::vector<LogitRow> rows = WantedRows(plan, results);
  reader.Read(Logits(static_cast<int64_t>(rows.size())), rows);
  return results;
}

void ExpectEqual(const std::vector<RowResult>& a, const std::vector<RowResult>& b,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].status, b[i].status) << what;
    EXPECT_EQ(a[i].sampled, b[i].sampled) << what;
    EXPECT_EQ(a[i].output, b[i].output) << what << ", row " << i;
    EXPECT_EQ(a[i].prompt_logprobs, b[i].prompt_logprobs) << what << ", row " << i;
  }
}

TEST(RowReaderTest, NeitherThreadsNorKernelSetsChangeABit) {
  const StepPlan plan = Plan();
  const std::vector<RowResult> expected = ReadWith(plan, "portable", 1);
  ASSERT_EQ(expected.size(), plan.rows.size());
  for (const int threads : {2, 3, 7}) {
    ExpectEqual(ReadWith(plan, "portable", threads), expected, std::to_string(threads));
  }
  for (const std::string& set : KernelSets()) ExpectEqual(ReadWith(plan, set, 2), expected, set);
}

// Counts the tasks that go to the pool.
class CountingKernels : public CpuKernels {
 public:
  CountingKernels() : CpuKernels(*SelectKernelSet("auto"), 2) {}
  void ParallelFor(int64_t num_tasks, ThreadPool::Body body) override {
    tasks.push_back(num_tasks);
    CpuKernels::ParallelFor(num_tasks, body);
  }
  std::vector<int64_t> tasks;
};

TEST(RowReaderTest, RowsGoToThePoolOneByOne) {
  const StepPlan plan = Plan();
  CountingKernels kernels;
  RowReader reader(&kernels, kVocab, {3});
  std::vector<RowResult> results;
  const std::vector<LogitRow> rows = WantedRows(plan, results);
  reader.Read(Logits(static_cast<int64_t>(rows.size())), rows);
  EXPECT_EQ(kernels.tasks, std::vector<int64_t>{static_cast<int64_t>(rows.size())});
}

TEST(RowReaderTest, EachRowIsWhatASamplerSaysOfItAlone) {
  const StepPlan plan = Plan();
  const std::vector<RowResult> results = ReadWith(plan, "auto", 3);
  const auto kernels = *MakeKernels({});
  std::vector<RowResult> unused;
  const std::vector<LogitRow> wanted = WantedRows(plan, unused);
  const std::vector<float> logits = Logits(static_cast<int64_t>(wanted.size()));
  size_t index = 0;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    EXPECT_EQ(results[r].sequence, row.sequence);
    EXPECT_EQ(results[r].sampled, row.sample);
    const bool scores = row.sampling->params.num_prompt_logprobs >= 0;
    ASSERT_EQ(results[r].prompt_logprobs.size(), scores ? 20u : 0u);
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      const bool last = i + 1 == row.tokens.size();
      if (!scores && !(row.sample && last)) continue;
      const auto values = std::span(logits).subspan(index++ * kVocab, kVocab);
      Sampler sampler(&kernels->row_math(), kVocab, {3});
      const auto position = row.context_len + static_cast<int32_t>(i) + 1;
      if (scores) {
        EXPECT_EQ(results[r].prompt_logprobs[i],
                  sampler.Score(values, row.sampling->prompt[position], position, 3));
      }
      if (row.sample && last) {
        EXPECT_EQ(results[r].output, sampler.Sample({.logits = values,
                                                     .context = row.sampling.get(),
                                                     .position = position}));
      }
    }
  }
  EXPECT_EQ(index, wanted.size());
}

TEST(RowReaderTest, LogitsThatAreNoDistributionAreAnErrorOfTheirRowAlone) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const StepPlan plan = Plan();
  const auto kernels = *MakeKernels({});
  const std::vector<RowResult> expected = ReadWith(plan, "auto", 1);
  std::vector<RowResult> results;
  const size_t num_rows = WantedRows(plan, results).size();
  const auto row = [&](std::vector<float>& logits, size_t i) {
    return std::span(logits).subspan(i * kVocab, kVocab);
  };
  // Of a sampled row, of one score among many, and of the last row.
  for (const size_t bad : {size_t{1}, size_t{15}, num_rows - 1}) {
    for (const float value : {std::nanf(""), kInfinity, -kInfinity}) {
      const std::vector<LogitRow> rows = WantedRows(plan, results);
      std::vector<float> logits = Logits(static_cast<int64_t>(num_rows));
      row(logits, bad)[kVocab - 1] = value;
      if (value == -kInfinity) std::ranges::fill(row(logits, bad), value);
      RowReader reader(kernels.get(), kVocab, {3});
      reader.Read(logits, rows);
      const auto failed = rows[bad].row - plan.rows.data();
      EXPECT_EQ(results[failed].status.code(), absl::StatusCode::kInternal) << value;
      EXPECT_THAT(results[failed].status.message(),
                  testing::HasSubstr(absl::StrCat("position ", rows[bad].position)));
      results[failed] = expected[failed];
      ExpectEqual(results, expected, absl::StrCat(bad));
    }
  }
}

TEST(RowReaderTest, MaskedTokensAreNoError) {
  const StepPlan plan = Plan();
  const auto kernels = *MakeKernels({});
  RowReader reader(kernels.get(), kVocab, {3});
  std::vector<RowResult> results;
  const std::vector<LogitRow> rows = WantedRows(plan, results);
  std::vector<float> logits(rows.size() * kVocab, -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < rows.size(); ++i) logits[i * kVocab + i] = -1;
  reader.Read(logits, rows);
  for (const RowResult& result : results) EXPECT_EQ(result.status, absl::OkStatus());
}

}  // namespace
}  // namespace baton
