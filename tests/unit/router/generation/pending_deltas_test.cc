#include "router/generation/pending_deltas.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>

namespace baton {
namespace {

ChoiceDelta Delta(int32_t choice, int32_t token, const std::string& text, size_t num_top = 0) {
  const std::vector<TokenLogprob> top(num_top);
  ChoiceDelta delta{.choice = choice, .text = text, .tokens = {token}};
  delta.logprobs.Add({.chosen = {.token = token}, .top = top});
  delta.logits_digests = {static_cast<uint64_t>(token)};
  return delta;
}

TEST(PendingDeltasTest, OneDeltaAtATimePassesUnchanged) {
  PendingDeltas pending(2);
  for (int32_t token = 0; token < 3; ++token) {
    EXPECT_TRUE(pending.empty());
    ChoiceDelta delta = Delta(1, token, "ab");
    delta.prompt = 1;
    if (token == 2) {
      delta.finish = FinishReason::kStop;
      delta.stop_string = "s";
      delta.stop_token = 9;
    }
    pending.Append(delta);
    EXPECT_FALSE(pending.empty());
    const ChoiceDelta taken = pending.Take();
    EXPECT_EQ(taken.choice, 1);
    EXPECT_EQ(taken.prompt, 1);
    EXPECT_EQ(taken.text, "ab");
    EXPECT_EQ(taken.tokens, std::vector<int32_t>{token});
    EXPECT_EQ(taken.logprobs.size(), 1u);
    EXPECT_EQ(taken.finish, delta.finish);
    EXPECT_EQ(taken.stop_string, delta.stop_string);
    EXPECT_EQ(taken.stop_token, delta.stop_token);
  }
  EXPECT_TRUE(pending.empty());
}

TEST(PendingDeltasTest, WhatWaitsLeavesInBoundedPiecesWithItsTextAndItsFinishLast) {
  PendingDeltas pending(1);
  std::string all;
  constexpr int32_t kTokens = 700;
  for (int32_t token = 0; token < kTokens; ++token) {
    const std::string text = token % 3 == 0 ? "" : std::to_string(token) + ",";
    all += text;
    ChoiceDelta delta = Delta(0, token, text);
    if (token + 1 == kTokens) delta.finish = FinishReason::kLength;
    pending.Append(std::move(delta));
  }
  std::string seen;
  int32_t next = 0;
  while (!pending.empty()) {
    const ChoiceDelta piece = pending.Take();
    EXPECT_LE(piece.tokens.size(), PendingDeltas::kMaxTokens);
    ASSERT_EQ(piece.logprobs.size(), piece.tokens.size());
    ASSERT_EQ(piece.logits_digests.size(), piece.tokens.size());
    std::string expected;
    for (size_t i = 0; i < piece.tokens.size(); ++i) {
      EXPECT_EQ(piece.tokens[i], next);
      EXPECT_EQ(piece.logprobs[i].chosen.token, next);
      EXPECT_EQ(piece.logits_digests[i], static_cast<uint64_t>(next));
      if (next % 3 != 0) expected += std::to_string(next) + ",";
      ++next;
    }
    EXPECT_EQ(piece.text, expected);
    seen += piece.text;
    EXPECT_EQ(piece.finish, pending.empty() ? FinishReason::kLength : FinishReason::kNone);
  }
  EXPECT_EQ(next, kTokens);
  EXPECT_EQ(seen, all);
}

TEST(PendingDeltasTest, AlternativesCountAndAPieceHasOneTokenAtLeast) {
  PendingDeltas pending(1);
  for (int32_t token = 0; token < 100; ++token) pending.Append(Delta(0, token, "x", 20));
  size_t tokens = 0;
  while (!pending.empty()) {
    const ChoiceDelta piece = pending.Take();
    tokens += piece.tokens.size();
    EXPECT_LE(piece.tokens.size() * 21, PendingDeltas::kMaxScores);
  }
  EXPECT_EQ(tokens, 100u);
  for (int32_t token = 0; token < 3; ++token) pending.Append(Delta(0, token, "x", 1000));
  for (int32_t token = 0; token < 3; ++token) EXPECT_EQ(pending.Take().tokens.size(), 1u);
  EXPECT_TRUE(pending.empty());
}

TEST(PendingDeltasTest, WhatComesWhileSomeHasLeftFollowsIt) {
  PendingDeltas pending(1);
  std::string seen;
  std::vector<int32_t> tokens;
  const auto take = [&] {
    const ChoiceDelta piece = pending.Take();
    seen += piece.text;
    tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
    EXPECT_EQ(piece.logprobs.size(), piece.tokens.size());
    return piece;
  };
  std::string all;
  for (int32_t token = 0; token < 1000; ++token) {
    pending.Append(Delta(0, token, std::to_string(token)));
    all += std::to_string(token);
    if (token % 300 == 299) take();
  }
  pending.Append(
      {.text = "end", .finish = FinishReason::kStop, .stop_string = "s", .stop_token = 3});
  while (!pending.empty()) {
    const ChoiceDelta piece = take();
    EXPECT_EQ(piece.stop_string.has_value(), pending.empty());
    EXPECT_EQ(piece.stop_token.has_value(), pending.empty());
  }
  EXPECT_EQ(seen, all + "end");
  ASSERT_EQ(tokens.size(), 1000u);
  for (int32_t token = 0; token < 1000; ++token) EXPECT_EQ(tokens[token], token);
  pending.Append(Delta(0, 7, "again"));
  EXPECT_EQ(pending.Take().text, "again");
}

// A million tokens leave in 3,907 pieces. Were the rest moved at each, 10 s would not do.
TEST(PendingDeltasTest, TakingAllCostsWhatThereIs) {
  PendingDeltas pending(1);
  ChoiceDelta thousand{.text = std::string(3000, 'x'), .tokens = std::vector<int32_t>(1000, 5)};
  for (int32_t token : thousand.tokens) thousand.logprobs.Add({.chosen = {.token = token}});
  for (int i = 0; i < 1000; ++i) pending.Append(thousand);
  const std::clock_t begin = std::clock();  // Of this process, however busy the machine is.
  size_t tokens = 0;
  while (!pending.empty()) tokens += pending.Take().tokens.size();
  EXPECT_EQ(tokens, 1'000'000u);
  EXPECT_LT(std::clock() - begin, 3 * CLOCKS_PER_SEC);
}

TEST(PendingDeltasTest, ChoicesTakeTurns) {
  PendingDeltas pending(3);
  for (int32_t token = 0; token < 300; ++token) {
    pending.Append(Delta(2, token, ""));
    pending.Append(Delta(0, token, ""));
  }
  std::vector<int32_t> order;
  while (!pending.empty()) order.push_back(pending.Take().choice);
  EXPECT_EQ(order, (std::vector<int32_t>{2, 0, 2, 0}));
}

TEST(PendingDeltasTest, AnEndWithoutTokensIsAPieceOfItsOwn) {
  PendingDeltas pending(1);
  pending.Append({.finish = FinishReason::kLength});
  EXPECT_EQ(pending.Take().finish, FinishReason::kLength);
  EXPECT_TRUE(pending.empty());
}

}  // namespace
}  // namespace baton
