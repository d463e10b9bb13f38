#include "deploy/cli/audit_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::cli {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr Incarnation kRouter = 0x77;
constexpr Incarnation kPrefill = 0xa1;
constexpr Incarnation kDecode = 0xb1;

HeldCall Call(uint64_t counter, Attempt attempt = 1) {
  HeldCall call;
  call.sequence = {.router = kRouter, .counter = counter};
  call.attempt = attempt;
  call.state = "RUNNING";
  call.num_blocks = 3;
  return call;
}

// One router with sequence 1 in attempt 2, whose calls are open on both workers.
class AuditReportTest : public testing::Test {
 protected:
  AuditReportTest() {
    sample_.workers.push_back({.name = "prefill-0", .role = "prefill", .held = {}});
    sample_.workers.push_back({.name = "decode-0", .role = "decode", .held = {}});
    prefill().incarnation = kPrefill;
    decode().incarnation = kDecode;
    own(1) = {.request = "cmpl-7",
              .attempt = 2,
              .state = "DECODING",
              .prefill = "00000000000000a1",
              .decode = "00000000000000b1"};
  }

  WorkerAudit& prefill() { return sample_.workers[0].held; }
  WorkerAudit& decode() { return sample_.workers[1].held; }
  OwnedSequence& own(uint64_t counter) {
    return sample_.sequences[ToString(SequenceId{.router = kRouter, .counter = counter})];
  }
  // Two equal looks: what has no owner stays so.
  AuditReport Report() const { return Reconcile(sample_, sample_); }
  // The reason why the only call of the decode worker has no owner.
  std::string Reason() const { return Report().workers[1].calls.at(0).reason; }

  AuditSample sample_;
};

TEST_F(AuditReportTest, CallsOfALiveSequenceHaveItsStateAsOwner) {
  prefill().calls = {Call(1, 2)};
  decode().calls = {Call(1, 2)};
  const AuditReport report = Report();
  EXPECT_TRUE(report.ok());
  for (const WorkerReport& one : report.workers) EXPECT_EQ(one.calls.at(0).owner, "DECODING");
}

TEST_F(AuditReportTest, WorkerMayBeAnAttemptBehindTheRouter) {
  prefill().calls = {Call(1, 1)};
  EXPECT_TRUE(Report().ok());
}

TEST_F(AuditReportTest, CallOfAnUnknownSequenceIsALeak) {
  decode().calls = {Call(9)};
  EXPECT_EQ(Report().leaked_calls, 1);
  EXPECT_EQ(Reason(), "no router knows the sequence");
}

TEST_F(AuditReportTest, CallOfAnotherRouterIsALeak) {
  decode().calls = {Call(1, 2)};
  decode().calls[0].sequence.router = kRouter + 1;
  EXPECT_EQ(Report().leaked_calls, 1);
}

TEST_F(AuditReportTest, WhereOnlySomeRoutersWereAskedTheCallsOfOthersAreTheirs) {
  const json answer = {{"incarnation", "0000000000000077"}, {"sequences", json::array()}};
  ASSERT_TRUE(AddRouterAudit(answer, &sample_).ok());
  sample_.has_all_routers = false;
  decode().calls = {Call(1, 2), Call(5)};
  decode().calls[1].sequence.router = kRouter + 1;
  const AuditReport report = Report();
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.workers[1].calls[0].owner, "DECODING");
  EXPECT_EQ(report.workers[1].calls[1].owner, "another router's");
  decode().calls.push_back(Call(9));  // Of the router that was asked.
  EXPECT_EQ(Report().leaked_calls, 1);
  EXPECT_TRUE(Report().workers[1].calls[2].is_leak);
}

TEST_F(AuditReportTest, CallThatTheRouterHoldsOnAnotherProcessIsALeak) {
  decode().calls = {Call(1, 2)};
  own(1).decode = "00000000000000b2";
  EXPECT_EQ(Report().leaked_calls, 1);
  EXPECT_EQ(Reason(), "the router has no decode call open here");
  own(1).decode = "0";
  EXPECT_EQ(Report().leaked_calls, 1);
}

TEST_F(AuditReportTest, CallOfTheOtherSideIsALeak) {
  decode().incarnation = kPrefill;  // The router's call on it is a prefill call.
  decode().calls = {Call(1, 2)};
  EXPECT_EQ(Report().leaked_calls, 1);
}

TEST_F(AuditReportTest, AttemptThatTheRouterHasNotBegunIsALeak) {
  decode().calls = {Call(1, 3)};
  EXPECT_EQ(Report().leaked_calls, 1);
  EXPECT_EQ(Reason(), "the router is at attempt 2");
}

TEST_F(AuditReportTest, OlderOfTwoCallsForOneSequenceIsALeak) {
  decode().calls = {Call(1, 1), Call(1, 2)};
  const AuditReport report = Report();
  EXPECT_EQ(report.leaked_calls, 1);
  EXPECT_TRUE(report.workers[1].calls[0].is_leak);
  EXPECT_EQ(report.workers[1].calls[1].owner, "DECODING");
}

TEST_F(AuditReportTest, ACallThatTheRouterHasNotBegunSupersedesNone) {
  decode().calls = {Call(1, 2), Call(1, 3)};
  const AuditReport report = Report();
  EXPECT_EQ(report.workers[1].calls[0].owner, "DECODING");
  EXPECT_TRUE(report.workers[1].calls[1].is_leak);
}

TEST_F(AuditReportTest, WhatOnlyOneLookSawIsNoLeak) {
  AuditSample before = sample_;
  decode().calls = {Call(9)};
  decode().num_unowned = 4;
  EXPECT_TRUE(Reconcile(before, sample_).ok()) << "it came between the looks";
  EXPECT_TRUE(Reconcile(sample_, before).ok()) << "it went between the looks";
  EXPECT_THAT(AuditTable(Reconcile(before, sample_)), HasSubstr("settling: no router knows"));
}

TEST_F(AuditReportTest, WhatAnotherProcessHeldBeforeIsNoLeak) {
  decode().calls = {Call(9)};
  decode().num_unowned = 4;
  const AuditSample before = sample_;
  decode().incarnation = kDecode + 1;  // Restarted in between.
  EXPECT_TRUE(Reconcile(before, sample_).ok());
}

TEST_F(AuditReportTest, BlocksThatNoCallHoldsAreLeaksAsFarAsTheyStay) {
  decode().num_unowned = 4;
  const AuditSample before = sample_;
  decode().num_unowned = 6;
  const AuditReport report = Reconcile(before, sample_);
  EXPECT_EQ(report.leaked_blocks, 4);
  EXPECT_EQ(report.workers[1].leaked_blocks, 4);
}

TEST_F(AuditReportTest, LastLineOfTheTableIsTheVerdict) {
  decode().calls = {Call(1, 2)};
  EXPECT_THAT(AuditTable(Report()), HasSubstr("\nOK: 1 calls on 2 workers"));
  decode().calls.push_back(Call(9));
  decode().num_unowned = 4;
  const std::string table = AuditTable(Report());
  EXPECT_THAT(table, HasSubstr("0000000000000077-9"));
  EXPECT_THAT(table, HasSubstr("NONE: no router knows the sequence"));
  EXPECT_THAT(table, HasSubstr("\n5 without owner: 1 calls, and 4 blocks and 0 legs that no call "
                               "holds\n"));
  EXPECT_EQ(AuditJson(Report())["ok"], false);
  EXPECT_EQ(AuditJson(Report())["workers"][1]["calls"][1]["leak"], true);
}

TEST_F(AuditReportTest, LegsStandAtTheCallThatHasTheTransferAndAreLeaksWithoutOne) {
  decode().calls = {Call(1, 2)};
  decode().calls[0].leg_ranks = {0, 1};
  EXPECT_TRUE(Report().ok());
  EXPECT_THAT(AuditTable(Report()), testing::ContainsRegex("RUNNING .* 3 +0,1 .*DECODING\n"));
  EXPECT_EQ(AuditJson(Report())["workers"][1]["calls"][0]["leg_ranks"], json({0, 1}));
  decode().unowned_leg_ranks = {1, 0, 1};
  AuditSample before = sample_;
  before.workers[1].held.unowned_leg_ranks = {3, 1, 1, 1};
  const AuditReport report = Reconcile(before, sample_);
  EXPECT_EQ(report.leaked_legs, 2);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(AuditJson(report)["workers"][1]["leaked_leg_ranks"], json({1, 1}));
  EXPECT_EQ(AuditJson(report)["leaked_legs"], 2);
  EXPECT_THAT(AuditTable(report), testing::ContainsRegex("decode-0 .* 0 +1,1 .*NONE: no call"));
  EXPECT_THAT(AuditTable(report), HasSubstr("\n2 without owner: 0 calls, and 0 blocks and 2 legs"));
  before.workers[1].held.incarnation = kDecode + 1;  // Restarted in between.
  EXPECT_TRUE(Reconcile(before, sample_).ok());
}

TEST_F(AuditReportTest, TheIdOfAnAnswerFindsItsCallsWhateverTheirOwner) {
  decode().calls = {Call(1, 2), Call(1, 3)};
  const AuditReport report = Report();
  for (const AuditedCall& call : report.workers[1].calls) EXPECT_EQ(call.request, "cmpl-7");
  const json calls = AuditJson(report)["workers"][1]["calls"];
  EXPECT_EQ(calls[0]["request"], "cmpl-7");
  EXPECT_THAT(AuditTable(report), testing::ContainsRegex("RUNNING.* cmpl-7 .*DECODING\n"));
}

TEST_F(AuditReportTest, ASequenceThatHoldsNothingIsFoundTooAndOnlyOnce) {
  decode().calls = {Call(1, 2)};
  own(2) = {.request = "chatcmpl-8", .attempt = 0, .state = "QUEUED", .age_s = 1.5};
  const std::string table = AuditTable(Report());
  EXPECT_THAT(table, testing::ContainsRegex("0000000000000077-2 .*1.5s  chatcmpl-8 .*QUEUED\n"));
  EXPECT_EQ(table.find("cmpl-7"), table.rfind("cmpl-7"));
  const json sequences = AuditJson(Report())["sequences"];
  ASSERT_EQ(sequences.size(), 2u);
  EXPECT_EQ(sequences[1]["request"], "chatcmpl-8");
  EXPECT_EQ(sequences[1]["state"], "QUEUED");
}

TEST_F(AuditReportTest, AnIdMovesNoCursorAndMakesNoLine) {
  own(1).request = "a b\n\x1b[2J\xC2\x9B";
  EXPECT_THAT(AuditTable(Report()), HasSubstr(" a?b??[2J?? "));
}

TEST_F(AuditReportTest, RoutersAnswerIsReadAsItIsWritten) {
  AuditSample sample;
  const json answer = {{"incarnation", "0000000000000077"},
                       {"sequences",
                        {{{"sequence", "0000000000000077-5"},
                          {"request", "cmpl-7"},
                          {"attempt", 3},
                          {"state", "QUEUED"},
                          {"prefill", "00000000000000a1"},
                          {"decode", "0"},
                          {"age_s", 1.5}}}}};
  ASSERT_TRUE(AddRouterAudit(json::parse(answer.dump()), &sample).ok());
  const OwnedSequence& owned = sample.sequences.at("0000000000000077-5");
  EXPECT_EQ(owned.attempt, 3u);
  EXPECT_EQ(owned.state, "QUEUED");
  EXPECT_EQ(owned.prefill, "00000000000000a1");
  EXPECT_EQ(owned.decode, "0");
  EXPECT_EQ(owned.request, "cmpl-7");
  EXPECT_EQ(owned.age_s, 1.5);
}

TEST_F(AuditReportTest, AnswerThatIsNoAuditIsRefused) {
  for (const char* text :
       {"null", "[]", "{}", R"({"sequences": 7})", R"({"sequences": [7]})",
        R"({"sequences": [{"sequence": "x", "state": "QUEUED"}]})",
        R"({"sequences": [{"sequence": "x", "attempt": -1, "state": "QUEUED"}]})",
        R"({"sequences": [{"sequence": "x", "attempt": 1}]})"}) {
    AuditSample sample;
    EXPECT_FALSE(AddRouterAudit(json::parse(text), &sample).ok()) << text;
    EXPECT_TRUE(sample.sequences.empty());
  }
}

}  // namespace
}  // namespace baton::cli
