#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/check_args.h"
#include "kernels/make_device.h"

namespace baton {
namespace {

// Two rows over five tokens; the second has an entry in every list.
class CheckSampleContentsTest : public testing::Test {
 protected:
  CheckSampleContentsTest() {
    rows_[1] = {.num_top = 2,
                .num_bias = 1,
                .num_mask = 1,
                .num_prompt = 2,
                .first_emitted = 2,
                .num_emitted = 2};
  }

  void ExpectRefused(const std::string& message) {
    const absl::Status status = CheckArgs(sample_);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
  }

  std::vector<float> logits_ = std::vector<float>(10);
  std::vector<SampleRow> rows_ = std::vector<SampleRow>(2);
  LogitBias bias_{4, 1};
  int32_t mask_ = 77;  // Passed over.
  std::vector<int32_t> history_ = {0, 4, 4, 0};
  std::vector<SampleResult> results_ = std::vector<SampleResult>(2);
  std::vector<int32_t> top_tokens_ = std::vector<int32_t>(4);
  std::vector<float> top_logits_ = std::vector<float>(4);
  SampleArgs sample_{.logits = logits_.data(),
                     .logits_stride = 5,
                     .vocab_size = 5,
                     .rows = rows_.data(),
                     .num_rows = 2,
                     .biases = &bias_,
                     .masks = &mask_,
                     .history = history_.data(),
                     .results = results_.data(),
                     .top = {top_tokens_.data(), top_logits_.data(), 2}};
};

TEST_F(CheckSampleContentsTest, WhatRowsPointToIsNamed) {
  EXPECT_EQ(CheckArgs(sample_), absl::OkStatus());
  const SampleRow good = rows_[1];
  const auto refused = [&](const SampleRow& row, const std::string& message) {
    rows_[1] = row;
    ExpectRefused(message);
    rows_[1] = good;
  };
  SampleRow row = good;
  row.logit_row = -1;
  refused(row, "rows[1].logit_row = -1: must be at least 0");
  row = good;
  row.top_k = -1;
  refused(row, "rows[1].top_k = -1");
  row = good;
  row.num_top = -2;
  refused(row, "rows[1].num_top = -2: must be at least -1");
  row.num_top = 3;
  refused(row, "rows[1].num_top = 3: must be at most top.stride = 2");
  row = good;
  row.num_bias = -1;
  refused(row, "rows[1].num_bias = -1");
  row = good;
  row.first_mask = -1;
  refused(row, "rows[1].first_mask = -1");
}

TEST_F(CheckSampleContentsTest, TokensOfListsAreInTheVocabulary) {
  bias_.token = 5;
  ExpectRefused("rows[1].bias = 5: must be in [0, 5)");
  bias_.token = 0;
  history_[0] = -1;
  ExpectRefused("rows[1].prompt = -1");
  history_ = {0, 4, 5, 0};
  ExpectRefused("rows[1].emitted = 5");
  history_[2] = 4;
  EXPECT_EQ(CheckArgs(sample_), absl::OkStatus());
  sample_.biases = nullptr;
  ExpectRefused("rows[1].the array of first_bias = null");
}

TEST_F(CheckSampleContentsTest, RowsToScoreAreCheckedLikewise) {
  ScoreRow row;
  ScoreResult result;
  const ScoreArgs args{.logits = logits_.data(),
                       .logits_stride = 5,
                       .vocab_size = 5,
                       .rows = &row,
                       .num_rows = 1,
                       .results = &result};
  EXPECT_EQ(CheckArgs(args), absl::OkStatus());
  for (const ScoreRow& bad : {ScoreRow{.logit_row = -1}, ScoreRow{.token = 5},
                              ScoreRow{.token = -1}, ScoreRow{.num_top = -1},
                              ScoreRow{.num_top = 1}}) {
    row = bad;
    EXPECT_EQ(CheckArgs(args).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(CheckSampleContentsTest, APlaceForATokenThatWasNotChosenGetsOneThatThereIs) {
  const std::vector<SampleResult> results = {{.token = 7}, {.token = -1}};
  const std::vector<TakenToken> taken = {{.row = 1, .to = 0}, {.row = 0, .to = 2}};
  std::vector<int32_t> tokens(3, -5);
  const auto cpu = MakeCpuKernels({.kernels = "portable"});
  ASSERT_TRUE(cpu.ok());
  ASSERT_EQ((*cpu)->TakeTokens({results.data(), taken.data(), 2, tokens.data()}), absl::OkStatus());
  EXPECT_EQ(tokens, (std::vector<int32_t>{0, -5, 7}));
}

TEST_F(CheckSampleContentsTest, PlacesOfTokensToTakeAreNotNegative) {
  const SampleResult result;
  TakenToken taken;
  int32_t token = 0;
  const TakeTokensArgs args{.results = &result, .taken = &taken, .count = 1, .tokens = &token};
  EXPECT_EQ(CheckArgs(args), absl::OkStatus());
  for (const TakenToken& bad : {TakenToken{.row = -1}, TakenToken{.to = -1}}) {
    taken = bad;
    EXPECT_EQ(CheckArgs(args).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton
