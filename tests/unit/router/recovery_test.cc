// What Recovery decides, without a node.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/recovery.h"
#include "tests/unit/router/sequence_builder.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;
using Rung = Recovery::Rung;
using State = SequenceState::State;

// Workers 0 and 3 prefill, 1 and 2 decode; all are up and were heard of.
class RecoveryTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int32_t w = 0; w < 4; ++w) Up(w, 100 + w);
    now_ += seconds(1);
  }
  void Up(int32_t worker, Incarnation incarnation, const std::string& numerics = "",
          int32_t kv_wire = kKvWireVersion) {
    directory_.OnUp(worker,
                    {.kv_wire_version = kv_wire,
                     .role = directory_.at(worker).role,
                     .incarnation = incarnation,
                     .numerics_id = numerics,
                     .block_size = 16,
                     .num_blocks = 10,
                     .max_model_len = 100},
                    now_);
  }
  void Heard(int32_t worker) {
    directory_.OnStatus(worker, {.incarnation = 100u + worker}, now_);
  }
  SequenceState::Side On(int32_t worker) {
    return {.worker = worker,
            .incarnation = 100u + worker,
            .pair = directory_.at(worker).pair,
            .connection = directory_.at(worker).connection};
  }
  // Loses that worker, of which something is heard before the judgement.
  absl::StatusOr<bool> LoseAndJudge(SequenceState& sequence, int32_t worker, bool is_up,
                                    absl::Status why = absl::UnavailableError("gone")) {
    recovery_.AddLoss(sequence, On(worker), why, now_);
    recovery_.OnQueued(sequence, now_);
    now_ += options_.judge_delay;
    if (is_up) {
      Heard(worker);
    } else {
      directory_.OnDown(worker, "gone", now_);
    }
    const auto judged = recovery_.Judge(sequence, now_);
    if (!is_up) Up(worker, 100 + worker);
    return judged;
  }
  // On a transfer from worker 0 to worker 1.
  Rung Climb(SequenceState& sequence) {
    sequence.state = State::kPrefilling;
    for (SequenceState::Side* side : {&sequence.prefill, &sequence.decode}) {
      side->worker = side == &sequence.prefill ? 0 : 1;
      side->pair = directory_.at(side->worker).pair;
    }
    sequence.decode.call = 7;
    return recovery_.Climb(sequence, now_);
  }

  Time now_{};
  RouterNodeOptions options_{.max_moves = 3, .max_retries = 2, .max_recovering = 2};
  RouterCounters counters_;
  WorkerDirectory directory_{{Role::kPrefill, Role::kDecode, Role::kDecode, Role::kPrefill},
                             seconds(1000), seconds(1000)};
  Recovery recovery_{options_, directory_, counters_};
  SequenceBuilder sequences_;
};

TEST_F(RecoveryTest, MovesAndRetriesHaveBoundsOfTheirOwn) {
  SequenceState& sequence = sequences_.New();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(LoseAndJudge(sequence, 1, /*is_up=*/true).value());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(LoseAndJudge(sequence, 1, /*is_up=*/false).value());
  EXPECT_EQ(counters_.retries, 2);
  EXPECT_EQ(counters_.moves, 3);
  EXPECT_EQ(sequence.lost.size(), 5u);
  EXPECT_TRUE(recovery_.HasFailed(sequence, 101));
  EXPECT_FALSE(recovery_.HasFailed(sequence, 102));
  EXPECT_TRUE(absl::IsUnavailable(LoseAndJudge(sequence, 2, /*is_up=*/false).status()));
}

TEST_F(RecoveryTest, TooManyRetriesEndTheRequestAndABugIsTold) {
  SequenceState& sequence = sequences_.New();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(LoseAndJudge(sequence, 1, true).value());
  const absl::Status bug = absl::InternalError("a bug");
  EXPECT_EQ(LoseAndJudge(sequence, 1, true, bug).status(), bug);
}

TEST_F(RecoveryTest, AHealthyWorkerThatGaveItUpIsAMoveAndLeftAloneForAMoment) {
  SequenceState& sequence = sequences_.New();
  const absl::Status gave_up = absl::AbortedError("no other transfer came in time");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(LoseAndJudge(sequence, 1, true, gave_up).value());
  EXPECT_EQ(sequence.moves, 3);
  EXPECT_EQ(sequence.retries, 0);
  EXPECT_EQ(directory_.NextRetry(now_), now_ + options_.retry_delay);
  EXPECT_TRUE(absl::IsUnavailable(LoseAndJudge(sequence, 1, true, gave_up).status()));
}

TEST_F(RecoveryTest, TheBudgetIsTenRetriesAndOneMoreForTenRequests) {
  for (int i = 0; i < 30; ++i) recovery_.OnRequest();  // No more than ten are saved.
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(LoseAndJudge(sequences_.New(), 1, true).ok()) << i;
  EXPECT_FALSE(LoseAndJudge(sequences_.New(), 1, true).ok());
  for (int i = 0; i < 10; ++i) recovery_.OnRequest();
  recovery_.OnRequest();  // Tenths do not add up to one in binary.
  EXPECT_TRUE(LoseAndJudge(sequences_.New(), 1, true).ok());
  EXPECT_TRUE(LoseAndJudge(sequences_.New(), 1, false).ok()) << "a move needs no budget";
  EXPECT_FALSE(LoseAndJudge(sequences_.New(), 1, true).ok());
}

TEST_F(RecoveryTest, AWorkerThatMayBeDownIsJudgedWhenItWasHeardOf) {
  SequenceState& sequence = sequences_.New();
  recovery_.AddLoss(sequence, On(1), absl::UnavailableError("gone"), now_);
  recovery_.OnQueued(sequence, now_);
  EXPECT_FALSE(recovery_.Judge(sequence, now_).value()) << "not at once";
  now_ += options_.judge_delay;
  EXPECT_FALSE(recovery_.Judge(sequence, now_).value()) << "nothing was heard";
  EXPECT_EQ(sequence.ready_at, now_ + options_.judge_delay);
  now_ += options_.judge_delay;
  Heard(1);
  EXPECT_TRUE(recovery_.Judge(sequence, now_).value());
  EXPECT_EQ(sequence.retries, 1);
}

TEST_F(RecoveryTest, AWorkerThatIsConnectedAnewWasLostThoughItIsReadBeforeItsCall) {
  SequenceState& sequence = sequences_.New();
  const SequenceState::Side side = On(1);
  directory_.OnDown(1, "gone", now_);
  Up(1, 101);
  recovery_.AddLoss(sequence, side, absl::UnavailableError("gone"), now_);
  recovery_.OnQueued(sequence, now_);
  now_ += options_.judge_delay;
  Heard(1);
  EXPECT_TRUE(recovery_.Judge(sequence, now_).value());
  EXPECT_EQ(sequence.moves, 1);
  EXPECT_EQ(sequence.retries, 0);
}

TEST_F(RecoveryTest, OneWorkerIsLostOnceAndForgivenWhenADecodeWorkerGoesOn) {
  SequenceState& sequence = sequences_.New();
  for (int i = 0; i < 2; ++i) recovery_.AddLoss(sequence, On(1), absl::AbortedError("x"), now_);
  recovery_.AddLoss(sequence, On(2), absl::AbortedError("x"), now_);
  EXPECT_EQ(sequence.losses.size(), 2u);
  recovery_.ForgetLosses(sequence);
  recovery_.OnQueued(sequence, now_);
  EXPECT_EQ(sequence.ready_at, now_) << "nothing to be judged";
  EXPECT_TRUE(recovery_.Judge(sequence, now_).value());
  EXPECT_THAT(sequence.lost, IsEmpty());
}

TEST_F(RecoveryTest, SoManyArePrefilledAgainAtATimeAndFirstStartsAreFree) {
  std::vector<SequenceState*> again;
  for (int i = 0; i < 3; ++i) {
    again.push_back(&sequences_.New());
    ASSERT_TRUE(LoseAndJudge(*again.back(), 1, true).value());
  }
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(recovery_.MayStart(*again[i]));
    recovery_.Start(*again[i]);
  }
  EXPECT_FALSE(recovery_.MayStart(*again[2]));
  SequenceState& first = sequences_.New();
  EXPECT_TRUE(recovery_.MayStart(first));
  recovery_.Start(first);
  EXPECT_FALSE(first.recovering);
  recovery_.End(first);
  EXPECT_FALSE(recovery_.MayStart(*again[2])) << "it was not counted";
  recovery_.End(*again[0]);
  recovery_.End(*again[0]);
  EXPECT_TRUE(recovery_.MayStart(*again[2]));
  recovery_.Start(*again[2]);
  recovery_.OnQueued(*again[1], now_);
  recovery_.ForgetLosses(*again[2]);
  for (int i = 0; i < 2; ++i) recovery_.Start(*again[i]);
}

TEST_F(RecoveryTest, TheLadderDependsOnWhoIsThere) {
  for (const bool has_kv : {false, true}) {
    for (const bool has_decode : {false, true}) {
      for (const bool has_prefill : {false, true}) {
        if (has_decode) {
          Up(2, 102);
        } else {
          directory_.OnDown(2, "gone", now_);
        }
        if (has_prefill) {
          Up(3, 103);
        } else {
          directory_.OnDown(3, "gone", now_);
        }
        SequenceState& sequence = sequences_.New();
        EXPECT_EQ(Climb(sequence), Rung::kSamePair);
        sequence.prefill.call = has_kv ? 6 : 0;
        EXPECT_EQ(Climb(sequence), has_kv && has_decode ? Rung::kOtherDecode
                                   : has_prefill        ? Rung::kOtherPrefill
                                                        : Rung::kDecodeAlone);
        EXPECT_EQ(Climb(sequence), Rung::kDecodeAlone);
        EXPECT_EQ(sequence.handoff_failures, 3);
      }
    }
  }
  EXPECT_EQ(counters_.handoff_failures, 24);
}

TEST_F(RecoveryTest, AStartBeginsOnTheFirstRung) {
  SequenceState& sequence = sequences_.New();
  Climb(sequence);
  sequence.decode.call = 0;
  recovery_.Start(sequence);
  EXPECT_EQ(Climb(sequence), Rung::kSamePair);
}

TEST_F(RecoveryTest, AWorkerThatDoesNotPairIsNoOther) {
  directory_.OnDown(3, "gone", now_);
  for (const bool is_of_other_bits : {true, false}) {
    Up(2, 102, is_of_other_bits ? "else" : "", is_of_other_bits ? kKvWireVersion : 99);
    SequenceState& sequence = sequences_.New();
    Climb(sequence);
    sequence.prefill.call = 6;
    EXPECT_EQ(Climb(sequence), Rung::kDecodeAlone);
  }
}

TEST_F(RecoveryTest, BlameWearsOffAndIsRenewed) {
  const auto blamed = [this] { return recovery_.Blamed(now_); };
  SequenceState& sequence = sequences_.New();
  Climb(sequence);
  ASSERT_EQ(blamed().size(), 1u);
  EXPECT_EQ(blamed()[0].prefill, 0);
  EXPECT_EQ(blamed()[0].decode, 1);
  now_ += seconds(4);
  EXPECT_EQ(blamed()[0].left, seconds(6));
  Climb(sequence);
  now_ += seconds(10) - milliseconds(1);
  EXPECT_EQ(blamed().size(), 1u);
  now_ += milliseconds(1);
  EXPECT_THAT(blamed(), IsEmpty());
}

}  // namespace
}  // namespace baton
