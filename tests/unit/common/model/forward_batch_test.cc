#include "common/model/forward_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A chunk [10, 14) of one sequence, a decode at 7, a prompt of three tokens.
ForwardBatch Mixed(std::vector<int32_t> logit_tokens) {
  return {.positions = {10, 11, 12, 13, 7, 0, 1, 2},
          .cu_seqlens_q = {0, 4, 5, 8},
          .seq_lens = {14, 8, 3},
          .block_table = {3, 4, 5, -1, 6, -1},
          .max_blocks = 2,
          .logit_tokens = std::move(logit_tokens)};
}

TEST(SelectLogitTokensTest, EachTokenSeesTheKeysUpToItself) {
  ForwardBatch queries;
  SelectLogitTokens(Mixed({1, 3, 4}), queries);
  EXPECT_THAT(queries.positions, ElementsAre(11, 13, 7));
  EXPECT_THAT(queries.cu_seqlens_q, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(queries.seq_lens, ElementsAre(12, 14, 8));
  EXPECT_THAT(queries.block_table, ElementsAre(3, 4, 3, 4, 5, -1));
  EXPECT_EQ(queries.max_blocks, 2);
}

TEST(SelectLogitTokensTest, NeighboursOfOneSequenceAreOneRowAndThoseOfTwoAreTwo) {
  ForwardBatch queries;
  SelectLogitTokens(Mixed({2, 3, 4, 5, 6}), queries);
  EXPECT_THAT(queries.positions, ElementsAre(12, 13, 7, 0, 1));
  EXPECT_THAT(queries.cu_seqlens_q, ElementsAre(0, 2, 3, 5));
  EXPECT_THAT(queries.seq_lens, ElementsAre(14, 8, 2));
  EXPECT_THAT(queries.block_table, ElementsAre(3, 4, 5, -1, 6, -1));
}

TEST(SelectLogitTokensTest, NothingWantedLeavesNoRowsOfTheBatchBefore) {
  ForwardBatch queries;
  SelectLogitTokens(Mixed({0, 7}), queries);
  EXPECT_THAT(queries.seq_lens, ElementsAre(11, 3));
  SelectLogitTokens(Mixed({}), queries);
  EXPECT_THAT(queries.positions, IsEmpty());
  EXPECT_THAT(queries.cu_seqlens_q, ElementsAre(0));
  EXPECT_THAT(queries.seq_lens, IsEmpty());
  EXPECT_THAT(queries.block_table, IsEmpty());
}

}  // namespace
}  // namespace baton
