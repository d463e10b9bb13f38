#include "common/engine/call_table.h"

#include "common/node/message.h"
#include "gtest/gtest.h"
#include "tests/unit/common/engine/engine_harness.h"

namespace baton {
namespace {

struct Entry : CallEntry {
  enum class State : uint8_t { kBusy, kEnding };
  static constexpr const char* kStateNames[] = {"BUSY", "ENDING"};
  State state = State::kBusy;
};

constexpr Time Second(int64_t seconds) { return Time(std::chrono::seconds(seconds)); }

class CallTableTest : public EngineHarness {
 protected:
  void SetUp() override {
    EngineHarness::SetUp();
    calls_ = std::make_unique<CallTable<Entry>>(*pool_, *engine_);
  }
  Entry& Open(CallId call, uint64_t sequence, Attempt attempt, int64_t timeout = 100) {
    PrefillRequest request{.sequence = {1, sequence},
                           .attempt = attempt,
                           .tokens = {5, 6, 7},
                           .prompt_length = 2,
                           .tenant = "t",
                           .age = std::chrono::seconds(3),
                           .timeout = std::chrono::seconds(timeout)};
    return calls_->Open(call, request, Second(10));
  }
  std::unique_ptr<CallTable<Entry>> calls_;
};

TEST_F(CallTableTest, AnOpenedCallsSequenceIsWhatTheRequestAskedFor) {
  const Entry& entry = Open(7, 1, 2);
  EXPECT_EQ(&calls_->at(7), &entry);
  EXPECT_EQ(entry.sequence->call, 7u);
  EXPECT_EQ(entry.sequence->tokens, (std::vector<int32_t>{5, 6, 7}));
  EXPECT_EQ(entry.sequence->sampling->prompt, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(entry.sequence->arrival, Second(7));
  EXPECT_EQ(entry.sequence->tenant, "t");
  EXPECT_EQ(entry.age, AgeOf(*entry.sequence));
  EXPECT_EQ(entry.deadline, Second(110));
  EXPECT_FALSE(entry.in_engine());
}

TEST_F(CallTableTest, ALaterAttemptFindsTheLastOneBeforeItAndNoOther) {
  Open(7, 1, 2);
  Open(8, 1, 4);
  Open(9, 3, 1);
  EXPECT_EQ(calls_->FindBefore({1, 1}, 5), &calls_->at(8));
  EXPECT_EQ(calls_->FindBefore({1, 1}, 4), nullptr);  // It is here.
  EXPECT_EQ(calls_->FindBefore({1, 1}, 3), nullptr);  // A later one is.
  EXPECT_EQ(calls_->FindBefore({1, 2}, 9), nullptr);  // Another sequence.
  EXPECT_EQ(calls_->FindBefore({1, 0}, 9), nullptr);
  calls_->SetAttempt(calls_->at(8), 6);
  EXPECT_FALSE(calls_->IsLive({1, 1}, 4));
  EXPECT_TRUE(calls_->IsLive({1, 1}, 6));
  EXPECT_EQ(calls_->FindBefore({1, 1}, 5), nullptr);
}

TEST_F(CallTableTest, DeadlinesAndLimitsOfStatesComeEachToTheirCall) {
  Entry& entry = Open(7, 1, 1, 20);
  Open(8, 2, 1, 30);
  EXPECT_EQ(calls_->NextDeadline(), Second(30));
  EXPECT_EQ(calls_->PastDeadline(Second(29)), nullptr);
  EXPECT_EQ(calls_->PastDeadline(Second(30)), &entry);
  calls_->SetStateLimit(entry, Second(15));
  calls_->SetStateLimit(entry, Second(16));  // Instead.
  EXPECT_EQ(calls_->NextDeadline(), Second(16));
  EXPECT_EQ(calls_->PastStateLimit(Second(16)), &entry);
  calls_->SetStateLimit(entry, kNever);
  EXPECT_EQ(calls_->PastStateLimit(Second(99)), nullptr);
}

TEST_F(CallTableTest, ARetiredCallIsFoundByItsCallAloneAndKeepsNoDeadline) {
  Entry& entry = Open(7, 1, 1);
  calls_->SetStateLimit(entry, Second(15));
  EXPECT_EQ(calls_->FindLive(7), &entry);
  calls_->Retire(entry);
  entry.state = Entry::State::kEnding;
  EXPECT_EQ(calls_->FindLive(7), nullptr);
  EXPECT_FALSE(calls_->IsLive({1, 1}, 1));
  EXPECT_EQ(calls_->NextDeadline(), kNever);
  EXPECT_EQ(&calls_->at(7), &entry);
  calls_->Erase(entry);
  EXPECT_TRUE(calls_->empty());
}

TEST_F(CallTableTest, StatusAndAuditCountWhatTheEngineHasAndWhatItHasNot) {
  Entry& waiting = Open(7, 1, 3);
  ASSERT_TRUE(pool_->Grow(waiting.sequence->blocks, 1));
  waiting.open_ticket = {5, 5};
  Entry& running = Open(8, 2, 1);
  ASSERT_TRUE(pool_->Grow(running.sequence->blocks, 1));
  engine_->Add(std::move(running.sequence));
  EXPECT_TRUE(running.in_engine());
  const WorkerStatus status = calls_->Status(66, LayerProgress(), /*draining=*/true);
  EXPECT_EQ(status.incarnation, 66u);
  EXPECT_EQ(status.waiting, 1);
  EXPECT_EQ(status.running, 1);
  EXPECT_TRUE(status.draining);
  const std::vector<OpenLeg> legs = {{{5, 5}, 0}, {{5, 6}, 3}, {{5, 5}, 1}, {{5, 5}, 1}};
  const WorkerAudit audit = calls_->Audit(66, Second(12), legs);
  ASSERT_EQ(audit.calls.size(), 2u);
  EXPECT_EQ(audit.calls[0].attempt, 3u);
  EXPECT_EQ(audit.calls[0].state, "BUSY");
  EXPECT_TRUE(audit.calls[0].transfer_open);
  EXPECT_EQ(audit.calls[0].age, std::chrono::seconds(2));
  EXPECT_EQ(audit.calls[0].leg_ranks, (std::vector<int32_t>{0, 1, 1}));
  EXPECT_FALSE(audit.calls[1].transfer_open);
  EXPECT_TRUE(audit.calls[1].leg_ranks.empty());
  EXPECT_EQ(audit.unowned_leg_ranks, std::vector<int32_t>{3});
  EXPECT_EQ(audit.calls[1].num_blocks, 1);
  EXPECT_EQ(audit.num_unowned, 0);
}

}  // namespace
}  // namespace baton
