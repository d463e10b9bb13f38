// What a router makes of a connection on which something is damaged or lost.
#include <gtest/gtest.h>

#include <atomic>
#include <utility>

#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "tests/unit/common/rpc/handmade_worker.h"
#include "tests/unit/common/rpc/test_cluster.h"

namespace baton {
namespace {

v1::DecodeEvent Tokens(int32_t position, uint32_t place) {
  v1::DecodeEvent event;
  ToProto(TokensEvent{.outputs = {{.position = position, .token = 3}}}, &event);
  Seal(&event, place);
  return event;
}

v1::DecodeEvent Alive(uint64_t num_events, uint32_t place) {
  v1::DecodeEvent event;
  event.mutable_alive()->set_num_events(num_events);
  Seal(&event, place + static_cast<uint32_t>(num_events));
  return event;
}

// Opens a call, and what came of it: the status of its end and the events before.
std::pair<absl::Status, int> CallOnce(TestRouter& router) {
  router.links.OpenDecode(1, 0, SampleDecode());
  const auto closed = router.inbox.Next<CallClosed>(absl::Seconds(20));
  if (!closed.has_value()) return {absl::UnknownError("the call does not end"), 0};
  return {closed->status, router.inbox.Count<WorkerEventReceived>()};
}

void ExpectANewConnection(HandmadeWorker& worker, TestRouter& router) {
  EXPECT_TRUE(router.inbox.Next<WorkerDown>().has_value());
  EXPECT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  EXPECT_EQ(worker.num_connections(), 2u);
}

void ExpectDamageSeen(HandmadeWorker& worker, int events_before) {
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  const auto [status, num_events] = CallOnce(router);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_EQ(num_events, events_before);
  ExpectANewConnection(worker, router);
}

TEST(DamagedLinkTest, ADamagedEventEndsTheCallAndTheConnection) {
  HandmadeWorker worker([](auto* writer, uint32_t place) {
    writer->Write(Tokens(10, place));
    v1::DecodeEvent damaged = Tokens(11, place + 1);
    damaged.mutable_tokens()->mutable_outputs(0)->set_token(2);
    writer->Write(damaged);
  });
  ExpectDamageSeen(worker, /*events_before=*/1);
}

TEST(DamagedLinkTest, ASignOfLifeShowsThatAnEventIsMissing) {
  HandmadeWorker worker([](auto* writer, uint32_t place) {
    writer->Write(Tokens(10, place));
    writer->Write(Alive(1, place));
    writer->Write(Alive(2, place));  // The second event was lost.
  });
  ExpectDamageSeen(worker, /*events_before=*/1);
}

TEST(DamagedLinkTest, AnEventOfAnotherCallEndsTheCallAndTheConnection) {
  HandmadeWorker worker([](auto* writer, uint32_t place) { writer->Write(Tokens(10, place + 7)); });
  ExpectDamageSeen(worker, /*events_before=*/0);
}

TEST(DamagedLinkTest, ABadEventThatArrivedWholeEndsTheCallAlone) {
  HandmadeWorker worker([](auto* writer, uint32_t place) { writer->Write(Tokens(-5, place)); });
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  const auto [status, num_events] = CallOnce(router);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_FALSE(router.inbox.Next<WorkerDown>(absl::Seconds(1)).has_value());
}

TEST(DamagedLinkTest, AWorkersOwnRefusalOfARebindEndsTheCallAlone) {
  HandmadeWorker worker([](auto* writer, uint32_t place) { writer->Write(Alive(0, place)); });
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());
  router.links.Rebind(1, WireSamples(1).Rebind());
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_TRUE(absl::IsUnavailable(closed->status)) << closed->status;
  EXPECT_FALSE(router.inbox.Next<WorkerDown>(absl::Seconds(1)).has_value());
}

TEST(DamagedLinkTest, ARebindThatArrivedDamagedEndsTheConnectionToo) {
  HandmadeWorker worker([](auto* writer, uint32_t place) { writer->Write(Alive(0, place)); },
                        {.rebind_answer = absl::DataLossError("crc32c does not match")});
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());
  router.links.Rebind(1, WireSamples(1).Rebind());
  EXPECT_TRUE(router.inbox.Next<CallClosed>().has_value());
  ExpectANewConnection(worker, router);
}

TEST(DamagedLinkTest, AWorkerThatDoesNotTakeARebindLosesTheCallInTime) {
  HandmadeWorker worker(
      [](auto* writer, uint32_t place) {
        for (int i = 0; i < 400 && writer->Write(Alive(0, place)); ++i) {
          absl::SleepFor(absl::Milliseconds(50));  // It lives.
        }
      },
      {.rebind_answer = absl::OkStatus()});
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());
  router.links.Rebind(1, WireSamples(1).Rebind());
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_TRUE(absl::IsUnavailable(closed->status)) << closed->status;
}

TEST(DamagedLinkTest, AllCallsOfADamagedConnectionEnd) {
  std::atomic<int> num_calls = 0;
  HandmadeWorker worker([&](auto* writer, uint32_t place) {
    writer->Write(num_calls++ == 0 ? Alive(0, place) : Tokens(10, place + 7));
  });
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  DecodeRequest request = SampleDecode();
  // Sooner than its own silence would end the first.
  const absl::Time limit = absl::Now() + absl::Milliseconds(4500);
  router.links.OpenDecode(1, 0, request);
  while (num_calls == 0) absl::SleepFor(absl::Milliseconds(5));
  router.links.OpenDecode(2, 0, request);
  EXPECT_TRUE(router.inbox.Next<CallClosed>(limit - absl::Now()).has_value());
  EXPECT_TRUE(router.inbox.Next<CallClosed>(limit - absl::Now()).has_value());
}

TEST(DamagedLinkTest, AWatchThatIsSilentEndsTheConnection) {
  HandmadeWorker worker([](auto*, uint32_t) {}, {.watch_is_silent = true});
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  EXPECT_TRUE(router.inbox.Next<WorkerDown>(absl::Seconds(15)).has_value());
  // The next connection has as much time.
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  EXPECT_FALSE(router.inbox.Next<WorkerDown>(absl::Seconds(3)).has_value());
}

TEST(DamagedLinkTest, ACallWithoutSignsOfLifeIsUnavailableAfterSeconds) {
  HandmadeWorker worker([](auto* writer, uint32_t place) { writer->Write(Alive(0, place)); });
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  const absl::Time begin = absl::Now();
  const auto [status, num_events] = CallOnce(router);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_GT(absl::Now() - begin, absl::Seconds(3));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
  ExpectANewConnection(worker, router);
}

TEST(DamagedLinkTest, ACallThatHasNothingToSayStaysOpen) {
  TestWorker decode(Role::kDecode, 7, 0, false, /*serves_sessions=*/false);
  TestWorker prefill(Role::kPrefill, 7, 0, false, /*serves_sessions=*/false);
  TestRouter router({{Role::kDecode, decode.address()}, {Role::kPrefill, prefill.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());
  router.links.OpenPrefill(2, 1, SamplePrefill());
  ASSERT_TRUE(decode.inbox.Next<DecodeOpened>().has_value());
  ASSERT_TRUE(prefill.inbox.Next<PrefillOpened>().has_value());
  // The wait is the subject: longer than a call may be silent.
  EXPECT_FALSE(router.inbox.Next<CallClosed>(absl::Seconds(8)).has_value());
}

}  // namespace
}  // namespace baton
