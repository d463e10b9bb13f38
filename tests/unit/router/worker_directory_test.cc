#include "router/worker_directory.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/worker_directory_fixture.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using Code = absl::StatusCode;

TEST_F(WorkerDirectoryTest, NobodyIsUsableBeforeItsHello) {
  EXPECT_EQ(directory_.Fits(kNeed).code(), Code::kUnavailable);
  EXPECT_FALSE(directory_.Usable(0));
  EXPECT_EQ(directory_.at(0).reason, "not connected yet");
}

TEST_F(WorkerDirectoryTest, OnlyANewIncarnationIsNew) {
  EXPECT_TRUE(directory_.OnUp(0, Hello(Role::kPrefill, 10), At(0)));
  directory_.OnDown(0, "connection lost", At(1));
  EXPECT_FALSE(directory_.OnUp(0, Hello(Role::kPrefill, 10), At(1)));
  EXPECT_TRUE(directory_.OnUp(0, Hello(Role::kPrefill, 11), At(2)));
}

TEST_F(WorkerDirectoryTest, FitsWhatSomePairCanTake) {
  AllUp();
  EXPECT_TRUE(directory_.Fits(kNeed).ok());
  const absl::Status too_long = directory_.Fits({.prompt_tokens = 20, .total_tokens = 101});
  EXPECT_EQ(too_long.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(too_long.message()),
              HasSubstr("101 tokens; the largest that fits is 100"));
}

TEST_F(WorkerDirectoryTest, APairIsAsLongAsItsShorterSide) {
  directory_.OnUp(0, Hello(Role::kPrefill, 10), At(0));
  HelloInfo small = Hello(Role::kDecode, 12);
  small.max_model_len = 25;
  directory_.OnUp(2, small, At(0));
  EXPECT_EQ(directory_.Fits(kNeed).code(), Code::kInvalidArgument);
  EXPECT_TRUE(directory_.Fits({.total_tokens = 30, .needs_decode = false}).ok());
}

TEST_F(WorkerDirectoryTest, OnlyWhatNoKnownPairCouldHoldIsRefusedForGood) {
  AllUp();
  HelloInfo large = Hello(Role::kPrefill, 20);
  large.max_model_len = 200;
  directory_.OnUp(0, large, At(1));
  large.role = Role::kDecode;
  large.incarnation = 22;
  directory_.OnUp(2, large, At(1));
  EXPECT_TRUE(directory_.Fits({.total_tokens = 200}).ok());
  directory_.OnDown(2, "gone", At(2));
  const absl::Status now = directory_.Fits({.total_tokens = 200});
  EXPECT_EQ(now.code(), Code::kUnavailable);
  EXPECT_THAT(std::string(now.message()), HasSubstr("holds 200 tokens, only up to 100"));
  EXPECT_EQ(directory_.Fits({.total_tokens = 201}).code(), Code::kInvalidArgument);
  EXPECT_TRUE(directory_.Fits({.total_tokens = 200, .needs_decode = false}).ok());
  directory_.OnUp(2, Hello(Role::kDecode, 32), At(3));  // Another process, with less.
  EXPECT_EQ(directory_.Fits({.total_tokens = 200}).code(), Code::kInvalidArgument);
}

TEST_F(WorkerDirectoryTest, APairIsLostAtTheMomentWhenItsLastWorkerGoesHoweverItGoes) {
  const RouteNeed alone = {.prompt_tokens = 20, .total_tokens = 30, .needs_decode = false};
  EXPECT_EQ(directory_.LostAt(kNeed), Time{});
  AllUp();
  EXPECT_EQ(directory_.LostAt(kNeed), kNever);
  directory_.OnDown(0, "gone", At(1));
  EXPECT_EQ(directory_.LostAt(kNeed), kNever);
  directory_.OnDown(1, "gone", At(2));
  EXPECT_EQ(directory_.LostAt(kNeed), At(2));
  EXPECT_EQ(directory_.LostAt(alone), At(2));
  directory_.OnUp(1, Hello(Role::kPrefill, 11), At(3));
  EXPECT_EQ(directory_.LostAt(kNeed), kNever);
  directory_.OnStatus(2, {.incarnation = 12, .draining = true}, At(4));
  directory_.MarkHung(3, At(5));
  EXPECT_EQ(directory_.LostAt(kNeed), At(5));
  EXPECT_EQ(directory_.LostAt(alone), kNever);
  directory_.OnStatus(3, {.incarnation = 13}, At(6));
  EXPECT_EQ(directory_.LostAt(kNeed), kNever);
  directory_.OnStatus(3, {.incarnation = 13, .draining = true}, At(7));
  EXPECT_EQ(directory_.LostAt(kNeed), At(7));
}

TEST_F(WorkerDirectoryTest, AGroupLosesItsPairWhateverOtherGroupsHave) {
  AllUp();
  RouteNeed bound = kNeed;
  bound.group = directory_.at(0).group;
  HelloInfo other = Hello(Role::kDecode, 22);
  other.numerics_id = "m";
  directory_.OnUp(2, other, At(1));
  EXPECT_EQ(directory_.LostAt(bound), kNever);
  other.incarnation = 23;
  directory_.OnUp(3, other, At(2));
  other.incarnation = 20;
  other.role = Role::kPrefill;
  directory_.OnUp(0, other, At(3));
  EXPECT_EQ(directory_.LostAt(bound), At(2));
  EXPECT_EQ(directory_.LostAt(kNeed), kNever);
  directory_.OnUp(1, other, At(4));  // Nobody is left in the group.
  EXPECT_EQ(directory_.LostAt(bound), At(2));
  bound.needs_decode = false;
  EXPECT_EQ(directory_.LostAt(bound), At(4));
}

TEST_F(WorkerDirectoryTest, WorkersThatComputeOtherBitsDoNotPair) {
  for (int field = 0; field < 3; ++field) {
    WorkerDirectory directory({Role::kPrefill, Role::kDecode}, milliseconds(2500),
                              std::chrono::seconds(2));
    directory.OnUp(0, Hello(Role::kPrefill, 10), At(0));
    HelloInfo other = Hello(Role::kDecode, 11);
    if (field == 0) other.numerics_id = "m";
    if (field == 1) other.layout_digest = 9;
    if (field == 2) other.model_digest = 9;
    directory.OnUp(1, other, At(0));
    EXPECT_EQ(directory.Fits(kNeed).code(), Code::kUnavailable) << "field " << field;
  }
}

// Two releases beside each other: 0 and 2 of this, 1 and 3 of the next, whose frames are others.
TEST_F(WorkerDirectoryTest, ReleasesThatComputeTheSameBitsRecoverForEachOtherAndPairWithinEach) {
  const auto up = [this](int32_t worker, int64_t ms) {
    HelloInfo hello = Hello(worker < 2 ? Role::kPrefill : Role::kDecode, 10 + worker);
    hello.protocol_version = worker % 2 == 1 ? kProtocolVersion : OldestSpoken();
    hello.kv_wire_version += worker % 2;
    directory_.OnUp(worker, hello, At(ms));
  };
  RouteNeed bound = kNeed;
  up(0, 0);
  up(3, 1);
  bound.group = directory_.at(0).group;
  EXPECT_EQ(directory_.at(3).group, bound.group);
  EXPECT_FALSE(directory_.HasPair(bound)) << "they cannot exchange K/V";
  up(2, 2);
  EXPECT_TRUE(directory_.HasPair(bound));
  up(1, 3);
  directory_.OnDown(0, "upgraded", At(4));
  EXPECT_TRUE(directory_.HasPair(bound)) << "what the other pair has begun, 1 and 3 go on with";
  const RoutingSnapshot snapshot = Snapshot(bound, 5);
  ASSERT_EQ(snapshot.decode.size(), 2u);
  EXPECT_EQ(snapshot.prefill.at(0).pair, snapshot.decode[1].pair);
  EXPECT_NE(snapshot.prefill.at(0).pair, snapshot.decode[0].pair);
}

// What frames bring of each layer is no matter of the bits.
TEST_F(WorkerDirectoryTest, WorkersWithOtherLayoutsOfTheirBlocksRecoverForEachOtherAndDoNotPair) {
  directory_.OnUp(0, Hello(Role::kPrefill, 10), At(0));
  HelloInfo other = Hello(Role::kDecode, 11);
  other.layout_digest = 9;
  directory_.OnUp(2, other, At(0));
  EXPECT_EQ(directory_.at(2).group, directory_.at(0).group);
  EXPECT_NE(directory_.at(2).pair, directory_.at(0).pair);
}

TEST_F(WorkerDirectoryTest, ATokenTakesABlockOfEachGroupOfLayers) {
  HelloInfo hello = Hello(Role::kDecode, 11);
  hello.num_blocks = 31;
  hello.layer_groups = 3;
  directory_.OnUp(2, hello, At(0));
  EXPECT_EQ(directory_.CandidateOf(2).capacity_tokens, 31 * hello.block_size / 3);
  directory_.OnStatus(2, {.incarnation = 11, .blocks = {.free = 9, .ready = 20, .cached = 2}},
                      At(1));
  EXPECT_EQ(directory_.CandidateOf(2).free_tokens, 11 * hello.block_size / 3);
}

TEST_F(WorkerDirectoryTest, ADecodeWorkerWithoutAPrefillWorkerOfItsFramesServesAlone) {
  HelloInfo prefill = Hello(Role::kPrefill, 10);
  ++prefill.kv_wire_version;
  directory_.OnUp(0, prefill, At(0));
  HelloInfo decode = Hello(Role::kDecode, 12);
  decode.computes_prompts = true;
  directory_.OnUp(2, decode, At(0));
  EXPECT_FALSE(directory_.HasPair(kNeed));
  EXPECT_EQ(directory_.AloneAt(kNeed), At(2000));
  directory_.OnUp(1, Hello(Role::kPrefill, 11), At(1));
  EXPECT_EQ(directory_.AloneAt(kNeed), kNever);
}

TEST_F(WorkerDirectoryTest, WorkersOfDifferentNumbersOfRanksPair) {
  directory_.OnUp(0, Hello(Role::kPrefill, 10), At(0));
  HelloInfo other = Hello(Role::kDecode, 12);
  other.tp_size = 4;
  directory_.OnUp(2, other, At(0));
  EXPECT_TRUE(directory_.Fits(kNeed).ok());
}

TEST_F(WorkerDirectoryTest, DownAndDrainingWorkersAreNoCandidates) {
  AllUp();
  directory_.OnDown(0, "connection lost", At(1));
  directory_.OnStatus(3, {.incarnation = 13, .draining = true}, At(1));
  const RoutingSnapshot snapshot = Snapshot(kNeed);
  ASSERT_EQ(snapshot.prefill.size(), 1u);
  EXPECT_EQ(snapshot.prefill[0].worker, 1);
  ASSERT_EQ(snapshot.decode.size(), 1u);
  EXPECT_EQ(snapshot.decode[0].worker, 2);
  EXPECT_EQ(snapshot.decode[0].capacity_tokens, 160);
}

TEST_F(WorkerDirectoryTest, AStatusOfAnEarlierIncarnationIsIgnored) {
  AllUp();
  directory_.OnStatus(0, {.incarnation = 9, .draining = true}, At(1));
  EXPECT_TRUE(directory_.Usable(0));
}

TEST_F(WorkerDirectoryTest, ARefusalIsRememberedUntilTheDelayOrTheNextStatus) {
  AllUp();
  directory_.Skip(2, At(20));
  directory_.Skip(3, At(30));
  EXPECT_TRUE(Snapshot(kNeed, 19).decode.empty());
  EXPECT_EQ(directory_.NextRetry(At(0)), At(20));
  EXPECT_EQ(Snapshot(kNeed, 20).decode.size(), 1u);
  EXPECT_EQ(directory_.NextRetry(At(20)), At(30));
  directory_.OnStatus(3, {.incarnation = 13}, At(21));
  EXPECT_EQ(Snapshot(kNeed, 21).decode.size(), 2u);
  EXPECT_EQ(directory_.NextRetry(At(21)), kNever);
  directory_.Skip(2, At(5000));
  directory_.OnUp(2, Hello(Role::kDecode, 22), At(22));
  EXPECT_EQ(Snapshot(kNeed, 22).decode.size(), 2u) << "a new connection has refused nothing";
}

TEST_F(WorkerDirectoryTest, APrefillWorkerGetsLittleAheadButAlwaysOnePrompt) {
  AllUp();
  directory_.at(0).pending_tokens = 31;  // 31 + 20 > 50.
  directory_.at(1).pending_tokens = 30;
  EXPECT_EQ(Snapshot(kNeed).prefill.size(), 1u);
  directory_.at(1).pending_tokens = 0;
  const RouteNeed large = {.prompt_tokens = 90, .total_tokens = 95};
  ASSERT_EQ(Snapshot(large).prefill.size(), 1u);
  EXPECT_EQ(Snapshot(large).prefill[0].worker, 1);
}

TEST_F(WorkerDirectoryTest, APrefillWorkerGetsAheadWhatItComputesInHalfASecond) {
  AllUp();
  const auto has_room = [this](int64_t rate, int64_t pending) {
    directory_.OnStatus(0, {.incarnation = 10, .tokens_per_s = rate}, At(1));
    directory_.at(0).pending_tokens = pending;
    return Snapshot(kNeed).prefill.front().worker == 0;
  };
  EXPECT_TRUE(has_room(80, 20));
  EXPECT_FALSE(has_room(80, 21)) << "40 tokens in half a second";
  EXPECT_TRUE(has_room(1, 0)) << "one prompt always";
  EXPECT_TRUE(has_room(1000, 30));
  EXPECT_FALSE(has_room(1000, 31)) << "never more than the bound";
}

TEST_F(WorkerDirectoryTest, WhatOtherRoutersGaveAWorkerCountsUntilItsNextStatus) {
  AllUp();
  SequenceState::Side prefill;
  SequenceState::Side decode;
  directory_.Take(prefill, 0, 20);
  directory_.Take(decode, 2, 30);
  directory_.OnStatus(0, {.incarnation = 10, .queued_tokens = 15}, At(1));
  EXPECT_EQ(directory_.CandidateOf(0).pending_tokens, 20) << "all of it may be ours";
  directory_.OnStatus(0, {.incarnation = 10, .queued_tokens = 45}, At(1));
  EXPECT_EQ(directory_.CandidateOf(0).pending_tokens, 45);
  // Four sequences hold 8 blocks, one of them is ours: its 30 tokens, and three quarters of 128.
  const WorkerStatus status = {.incarnation = 12,
                               .blocks = {.free = 1, .ready = 8, .cached = 1},
                               .running = 2,
                               .waiting = 1,
                               .preempted = 1};
  directory_.OnStatus(2, status, At(1));
  EXPECT_EQ(directory_.CandidateOf(2).pending_tokens, 30 + 96);
  directory_.Release(decode);
  directory_.OnStatus(2, {.incarnation = 12, .blocks = {.free = 10}}, At(1));
  EXPECT_EQ(directory_.CandidateOf(2).pending_tokens, 0);
  directory_.OnUp(0, Hello(Role::kPrefill, 20), At(2));
  directory_.Release(prefill);
  EXPECT_EQ(directory_.CandidateOf(0).pending_tokens, 0);
}

TEST_F(WorkerDirectoryTest, ManyPromptsOfOthersLeaveEachRouterOne) {
  AllUp();
  for (int32_t w : {0, 1}) {
    directory_.OnStatus(w, {.incarnation = 10u + w, .queued_tokens = 1000}, At(1));
  }
  EXPECT_EQ(Snapshot(kNeed).prefill.size(), 2u);
  SequenceState::Side side;
  directory_.Take(side, 0, 20);
  ASSERT_EQ(Snapshot(kNeed).prefill.size(), 1u);
  EXPECT_EQ(Snapshot(kNeed).prefill[0].worker, 1);
}

TEST_F(WorkerDirectoryTest, RoomIsWhatAStatusToldLessWhatWasTakenSince) {
  AllUp();
  EXPECT_EQ(directory_.CandidateOf(2).free_tokens, 160) << "new";
  const WorkerStatus status = {.incarnation = 12, .blocks = {.free = 2, .ready = 5, .cached = 3}};
  directory_.OnStatus(2, status, At(1));
  EXPECT_EQ(directory_.CandidateOf(2).free_tokens, 80);
  SequenceState::Side side;
  directory_.Take(side, 2, 30);
  EXPECT_EQ(directory_.CandidateOf(2).free_tokens, 50);
  directory_.Release(side);
  EXPECT_EQ(directory_.CandidateOf(2).free_tokens, 50) << "its blocks come back with a status";
  directory_.Take(side, 2, 90);
  EXPECT_EQ(directory_.CandidateOf(2).free_tokens, 0);
  directory_.OnStatus(2, {.incarnation = 12, .blocks = {.free = 4, .ready = 6}}, At(2));
  EXPECT_EQ(directory_.CandidateOf(2).free_tokens, 64);
  directory_.Release(side);
  directory_.Take(side, 2, 30);
  directory_.OnUp(2, Hello(Role::kDecode, 22), At(3));
  EXPECT_EQ(directory_.CandidateOf(2).free_tokens, 160) << "of the process before";
}

TEST_F(WorkerDirectoryTest, WithoutADecodeNeedNoDecodeWorkerIsOffered) {
  AllUp();
  EXPECT_TRUE(
      Snapshot({.prompt_tokens = 1, .total_tokens = 2, .needs_decode = false}).decode.empty());
}

TEST_F(WorkerDirectoryTest, ProgressIsAMovedCounterNotAStatus) {
  AllUp();
  directory_.OnStatus(0, {.incarnation = 10, .progress = 1}, At(5));
  directory_.OnStatus(0, {.incarnation = 10, .progress = 1}, At(9));
  EXPECT_EQ(directory_.at(0).last_progress, At(5));
}

// ---- Hanging -----------------------------------------------------------------------------------

TEST_F(WorkerDirectoryTest, SilenceForTheHangLimitIsHanging) {
  AllUp();
  EXPECT_EQ(directory_.HungAt(2), At(2500));
  directory_.OnStatus(2, {.incarnation = 12}, At(400));
  EXPECT_EQ(directory_.HungAt(2), At(2900));
  EXPECT_EQ(directory_.FenceAt(), At(2500));  // Another one.
  directory_.OnDown(2, "gone", At(400));
  EXPECT_EQ(directory_.HungAt(2), kNever);
}

TEST_F(WorkerDirectoryTest, NobodyIsFencedBeforeTheRouterWasAwakeToReadItsMail) {
  constexpr Duration kHang = milliseconds(2500);
  AllUp();
  directory_.OnLook(At(0));
  EXPECT_EQ(directory_.FenceAt(), At(2500) - kHang / 12);  // To look once more before.
  directory_.OnLook(At(2300));
  EXPECT_EQ(directory_.FenceAt(), At(2500));
  directory_.OnLook(At(2900));  // It stood still in between.
  EXPECT_EQ(directory_.FenceAt(), At(2900) + kHang / 24);
}

TEST_F(WorkerDirectoryTest, TokensOfASideCountOnceUntilTheyAreReleased) {
  AllUp();
  SequenceState::Side side;
  directory_.Take(side, 2, 30);
  EXPECT_EQ(side.incarnation, 12u);
  EXPECT_EQ(directory_.at(2).pending_tokens, 30);
  directory_.Release(side);
  directory_.Release(side);
  EXPECT_EQ(directory_.at(2).pending_tokens, 0);
}

TEST_F(WorkerDirectoryTest, AWorkerOfSlowLayersMayNotBeSilentForLonger) {
  AllUp();
  WorkerStatus status{.incarnation = 12, .progress = 7, .computing = true};
  directory_.OnStatus(2, status, At(100));  // Cold: its first layer has 20 s.
  EXPECT_EQ(directory_.HungAt(2), At(2600));
  status.longest_layer = milliseconds(500);
  directory_.OnStatus(2, status, At(300));
  EXPECT_EQ(directory_.HungAt(2), At(2800));
}

TEST_F(WorkerDirectoryTest, ACounterThatStandsWhileWorkRunsIsHangingHoweverOftenItIsHeardOf) {
  AllUp();
  WorkerStatus status{.incarnation = 12, .progress = 7, .computing = true};
  status.longest_layer = milliseconds(1);
  for (int64_t ms = 0; ms <= 2400; ms += 400) directory_.OnStatus(2, status, At(ms));
  EXPECT_EQ(directory_.HungAt(2), At(2500));
  status.progress = 8;
  directory_.OnStatus(2, status, At(2450));
  EXPECT_EQ(directory_.HungAt(2), At(4950));
  status.computing = false;
  directory_.OnStatus(2, status, At(2500));
  EXPECT_EQ(directory_.HungAt(2), At(5000));
  // Time without work does not count as time in which it stood.
  for (int64_t ms = 2900; ms <= 60'000; ms += 400) directory_.OnStatus(2, status, At(ms));
  status.computing = true;
  directory_.OnStatus(2, status, At(60'300));
  EXPECT_EQ(directory_.HungAt(2), At(59'700 + 2500));
}

TEST_F(WorkerDirectoryTest, AColdWorkersFirstLayerMayTakeLonger) {
  AllUp();
  const WorkerStatus status{.incarnation = 12, .progress = 0, .computing = true};
  for (int64_t ms = 0; ms <= 19000; ms += 400) directory_.OnStatus(2, status, At(ms));
  EXPECT_EQ(directory_.HungAt(2), At(20000));
}

TEST_F(WorkerDirectoryTest, WhatWasNotHeardWhileTheRouterStoodStillIsForgiven) {
  AllUp();
  directory_.Forgive(At(5000));
  EXPECT_EQ(directory_.HungAt(2), At(7500));
}

TEST_F(WorkerDirectoryTest, ASequenceThatIsBoundToAGroupFitsNoOther) {
  AllUp();
  RouteNeed bound = kNeed;
  bound.group = directory_.at(0).group;
  EXPECT_TRUE(directory_.Fits(bound).ok());
  EXPECT_EQ(Snapshot(bound).decode.size(), 2u);
  bound.group += 1;
  EXPECT_EQ(directory_.Fits(bound).code(), Code::kUnavailable);
  EXPECT_TRUE(Snapshot(bound).decode.empty());
}

TEST_F(WorkerDirectoryTest, ALayerMayTakeTwentyTimesTheLongestSoFar) {
  AllUp();
  WorkerStatus status{.incarnation = 12, .progress = 7, .computing = true};
  status.longest_layer = milliseconds(200);
  directory_.OnStatus(2, status, At(100));
  directory_.OnStatus(2, status, At(4000));
  EXPECT_EQ(directory_.HungAt(2), At(4100));
}

TEST_F(WorkerDirectoryTest, NoLayerMayTakeLongerThanTheFirst) {
  AllUp();
  WorkerStatus status{.incarnation = 12, .progress = 7, .computing = true};
  for (const Duration longest :
       {Duration(std::chrono::seconds(8)), Duration(std::chrono::hours(168))}) {
    status.longest_layer = longest;
    for (int64_t ms = 0; ms <= 19000; ms += 400) directory_.OnStatus(2, status, At(ms));
    EXPECT_EQ(directory_.HungAt(2), At(20000));
  }
}

TEST_F(WorkerDirectoryTest, AWorkerIsColdUntilItTellsHowLongItsLayersTake) {
  AllUp();
  WorkerStatus status{.incarnation = 12, .progress = 1, .computing = true};
  for (int64_t ms = 0; ms <= 19000; ms += 500) directory_.OnStatus(2, status, At(ms));
  EXPECT_EQ(directory_.HungAt(2), At(20000));
  status.progress = 2;
  status.longest_layer = milliseconds(1);
  directory_.OnStatus(2, status, At(19500));
  directory_.OnStatus(2, status, At(21000));
  EXPECT_EQ(directory_.HungAt(2), At(22000));
}

TEST_F(WorkerDirectoryTest, PatienceWearsOffWithTheNewsOfShorterLayers) {
  AllUp();
  WorkerStatus status{.incarnation = 12, .progress = 7, .computing = true};
  status.longest_layer = milliseconds(400);
  directory_.OnStatus(2, status, At(0));
  directory_.OnStatus(2, status, At(6000));
  EXPECT_EQ(directory_.HungAt(2), At(8000));
  status.longest_layer = milliseconds(20);
  directory_.OnStatus(2, status, At(6400));
  EXPECT_EQ(directory_.HungAt(2), At(2500));
}

TEST_F(WorkerDirectoryTest, AHungWorkerIsNotUsedUntilItMoves) {
  AllUp();
  const WorkerStatus standing{.incarnation = 12, .progress = 7, .computing = true};
  directory_.OnStatus(2, standing, At(0));
  directory_.MarkHung(2, At(0));
  EXPECT_FALSE(directory_.Usable(2));
  EXPECT_FALSE(directory_.IsUp(2, 12));
  EXPECT_EQ(directory_.HungAt(2), kNever);
  EXPECT_THAT(directory_.at(2).reason, HasSubstr("progress"));
  directory_.OnStatus(2, standing, At(100));
  EXPECT_FALSE(directory_.Usable(2));
  directory_.OnStatus(2, {.incarnation = 12, .progress = 8, .computing = true}, At(200));
  EXPECT_TRUE(directory_.Usable(2));
  EXPECT_TRUE(directory_.IsUp(2, 12));
  EXPECT_FALSE(directory_.IsUp(2, 11));
  directory_.MarkHung(2, At(300));
  directory_.OnUp(2, Hello(Role::kDecode, 12), At(400));
  EXPECT_TRUE(directory_.Usable(2)) << "it is connected anew";
}

// As far as the wire lets it count, see out_of_range_test.cc.
TEST_F(WorkerDirectoryTest, NoStatusMakesTheLoadOfOthersOverflow) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  AllUp();
  HelloInfo large = Hello(Role::kDecode, 12);
  large.block_size = 65536;
  large.num_blocks = kMost;
  directory_.OnUp(2, large, At(0));
  const WorkerStatus full{
      .incarnation = 12, .running = kMost, .waiting = kMost, .preempted = kMost};
  directory_.OnStatus(2, full, At(0));
  EXPECT_EQ(Snapshot(kNeed).decode[0].pending_tokens, int64_t{kMost} * 65536);
  const WorkerStatus empty{
      .incarnation = 13, .blocks = {.free = kMost / 6, .cached = kMost / 6}, .running = 1};
  directory_.OnStatus(3, empty, At(0));
  EXPECT_EQ(Snapshot(kNeed).decode[1].pending_tokens, 0);
}

}  // namespace
}  // namespace baton
