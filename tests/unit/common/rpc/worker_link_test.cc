#include "common/rpc/worker_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/synchronization/notification.h"
#include "common/rpc/seal.h"
#include "tests/unit/common/rpc/handmade_worker.h"
#include "tests/unit/common/rpc/test_cluster.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(WorkerLinkTest, MailsHelloThenStatusThenDown) {
  auto worker = std::make_unique<TestWorker>(Role::kDecode);
  TestRouter router({{Role::kDecode, worker->address()}});
  const auto up = router.inbox.Next<WorkerUp>();
  ASSERT_TRUE(up.has_value());
  EXPECT_EQ(up->worker, 0);
  EXPECT_EQ(up->hello.incarnation, 7);
  EXPECT_EQ(up->hello.numerics_id, "test");
  ASSERT_TRUE(router.inbox.Next<WorkerStatusChanged>().has_value());
  worker->running = 5;
  std::optional<WorkerStatusChanged> status;
  do {
    status = router.inbox.Next<WorkerStatusChanged>();
    ASSERT_TRUE(status.has_value());
  } while (status->status.running != 5);
  EXPECT_EQ(router.inbox.Count<WorkerDown>(), 0);
  worker.reset();
  EXPECT_TRUE(router.inbox.Next<WorkerDown>().has_value());
  router.links.OpenDecode(1, 0, SampleDecode());
  const auto closed = router.inbox.Next<CallClosed>();
  ASSERT_TRUE(closed.has_value());
  EXPECT_EQ(closed->status.message(), "the worker is not connected");
}

TEST(WorkerLinkTest, StatusComesAtLeastTwiceASecondWithoutChange) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerStatusChanged>().has_value());
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(router.inbox.Next<WorkerStatusChanged>(absl::Milliseconds(800)).has_value());
  }
}

// Neither statuses nor signs of life on its calls.
TEST(WorkerLinkTest, AWorkerWhoseNodeStandsIsSilent) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  ASSERT_TRUE(router.inbox.Next<WorkerStatusChanged>().has_value());
  worker.turn_s = 6;
  absl::SleepFor(absl::Seconds(1));  // Some may be under way.
  while (router.inbox.Next<WorkerStatusChanged>(absl::ZeroDuration()).has_value()) {
  }
  EXPECT_FALSE(router.inbox.Next<WorkerStatusChanged>(absl::Seconds(2)).has_value());
  EXPECT_TRUE(router.inbox.Next<WorkerDown>().has_value()) << "as if nobody was there";
  EXPECT_FALSE(router.inbox.Next<WorkerUp>(absl::Seconds(2)).has_value()) << "nor comes back";
  worker.turn_s = 0;
  EXPECT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  EXPECT_TRUE(router.inbox.Next<WorkerStatusChanged>().has_value());
}

TEST(WorkerLinkTest, ANewProcessAtTheSameAddressIsDownThenUp) {
  auto worker = std::make_unique<TestWorker>(Role::kDecode, 7);
  const int port = worker->server.port();
  TestRouter router({{Role::kDecode, worker->address()}});
  ASSERT_EQ(router.inbox.Next<WorkerUp>()->hello.incarnation, 7);
  worker.reset();
  ASSERT_TRUE(router.inbox.Next<WorkerDown>().has_value());
  TestWorker successor(Role::kDecode, 8, port);
  const auto up = router.inbox.Next<WorkerUp>();
  ASSERT_TRUE(up.has_value());
  EXPECT_EQ(up->hello.incarnation, 8);
}

TEST(WorkerLinkTest, AWorkerOfTheWrongRoleIsReportedAndNotUsed) {
  TestWorker worker(Role::kPrefill);
  TestRouter router({{Role::kDecode, worker.address()}});
  const auto down = router.inbox.Next<WorkerDown>();
  ASSERT_TRUE(down.has_value());
  EXPECT_THAT(down->reason, HasSubstr("a prefill worker answers"));
  // It is asked again, later and later, and the same answer is no news.
  EXPECT_FALSE(router.inbox.Next<WorkerDown>(absl::Seconds(2)).has_value());
  EXPECT_EQ(router.inbox.Count<WorkerUp>(), 0);
  router.links.Stop();  // While it backs off, and once more at its end.
}

TEST(WorkerLinkTest, AWorkerThatIsNotThereIsReported) {
  TestRouter router({{Role::kDecode, "127.0.0.1:1"}});
  const auto down = router.inbox.Next<WorkerDown>();
  ASSERT_TRUE(down.has_value());
  EXPECT_EQ(down->reason, "no worker answers");
}

void Nothing(grpc::ServerWriter<v1::DecodeEvent>*, uint32_t) {}

TEST(WorkerLinkTest, WhereAProcessWasNobodyListensIsSoonKnown) {
  auto worker = std::make_unique<TestWorker>(Role::kDecode, 7);
  TestRouter router({{Role::kDecode, worker->address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  worker.reset();
  const auto down = router.inbox.Next<WorkerDown>();
  ASSERT_TRUE(down.has_value());
  EXPECT_FALSE(down->is_gone) << "of the connection alone nobody knows";
  const auto gone = router.inbox.Next<WorkerDown>(absl::Seconds(1));
  ASSERT_TRUE(gone.has_value());
  EXPECT_TRUE(gone->is_gone);
  EXPECT_FALSE(router.inbox.Next<WorkerDown>(absl::Milliseconds(500)).has_value());
}

TEST(WorkerLinkTest, AWorkerWhoseSessionEndsIsNotGone) {
  HandmadeWorker worker(Nothing, {.session = [](WorkersEnd& end) { end.leaves = true; }});
  TestRouter router({{Role::kDecode, worker.address()}});
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
    const auto down = router.inbox.Next<WorkerDown>();
    ASSERT_TRUE(down.has_value());
    EXPECT_FALSE(down->is_gone);
  }
}

// Sequences wait for it a second, whatever befell the sessions before; but it is not asked without
// end.
TEST(WorkerLinkTest, BehindASessionThatHadBegunWellIsAShortBackOff) {
  HandmadeWorker worker(Nothing, {.session = [](WorkersEnd& end) {
                          end.Write(end.First({}));
                          end.leaves = true;
                        }});
  TestRouter router({{Role::kDecode, worker.address()}});
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value()) << i;
  EXPECT_LT(absl::Now() - begin, absl::Seconds(14)) << "with the usual back-off it is 16";
  const int num_hellos = worker.num_hellos();
  const absl::Time after = absl::Now();
  absl::SleepFor(absl::Seconds(2));
  EXPECT_LE(worker.num_hellos() - num_hellos, 10 * absl::ToDoubleSeconds(absl::Now() - after))
      << "without any it is 40 a second";
}

TEST(WorkerLinkTest, BehindASessionOfWhichNothingCameIsABackOff) {
  HandmadeWorker worker(Nothing, {.session = [](WorkersEnd& end) { end.leaves = true; }});
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
  absl::SleepFor(absl::Seconds(2));
  EXPECT_LE(worker.num_hellos(), 10);
}

TEST(WorkerLinkTest, ADamagedHelloIsNotBelievedAndAskedForAgainWithABackOff) {
  HandmadeWorker worker(Nothing, {.spoil_hello = [](v1::HelloResponse* hello) {
                          hello->set_num_blocks(hello->num_blocks() + 1);
                        }});
  TestRouter router({{Role::kDecode, worker.address()}});
  const auto down = router.inbox.Next<WorkerDown>();
  ASSERT_TRUE(down.has_value());
  EXPECT_THAT(down->reason, HasSubstr("bad hello"));
  EXPECT_FALSE(router.inbox.Next<WorkerUp>(absl::Seconds(2)).has_value());
  EXPECT_GE(worker.num_hellos(), 2);
  EXPECT_LE(worker.num_hellos(), 10);  // At once, after 100, 200, 400, 800 ms, then each second.
}

TEST(WorkerLinkTest, AWorkerOfAnotherProtocolIsReportedAndNotUsed) {
  for (const int32_t version : {OldestSpoken() - 1, kProtocolVersion + 1}) {
    HandmadeWorker worker(Nothing, {.spoil_hello = [&](v1::HelloResponse* hello) {
                            hello->set_protocol_version(version);
                            Seal(hello);
                          }});
    TestRouter router({{Role::kDecode, worker.address()}});
    const auto down = router.inbox.Next<WorkerDown>();
    ASSERT_TRUE(down.has_value());
    EXPECT_THAT(down->reason, HasSubstr(absl::StrCat("it speaks protocol ", version, ", this")));
    EXPECT_EQ(router.inbox.Count<WorkerUp>(), 0);
  }
}

TEST(WorkerLinkTest, AWorkerOfTheReleaseBeforeIsUsed) {
  HandmadeWorker worker(Nothing, {.spoil_hello = [](v1::HelloResponse* hello) {
                          hello->set_protocol_version(3);  // Which knew no such field.
                          hello->clear_kv_wire_version();
                          Seal(hello);
                        }});
  TestRouter router({{Role::kDecode, worker.address()}});
  const auto up = router.inbox.Next<WorkerUp>();
  ASSERT_TRUE(up.has_value());
  EXPECT_EQ(up->hello.protocol_version, 3);
  EXPECT_EQ(up->hello.kv_wire_version, 2);
}

TEST(WorkerLinkTest, AStatusOfAnotherProcessOrADamagedOneEndsTheConnection) {
  const auto other = [](v1::WorkerStatus* status) {
    status->set_incarnation(8);
    Seal(status);
  };
  const auto damaged = [](v1::WorkerStatus* status) { status->set_waiting(3); };
  for (const bool is_damaged : {true, false}) {
    Habits habits;
    habits.spoil_status = is_damaged ? std::function<void(v1::WorkerStatus*)>(damaged) : other;
    HandmadeWorker worker(Nothing, habits);
    TestRouter router({{Role::kDecode, worker.address()}});
    ASSERT_TRUE(router.inbox.Next<WorkerUp>().has_value());
    const auto down = router.inbox.Next<WorkerDown>();
    ASSERT_TRUE(down.has_value());
    EXPECT_THAT(down->reason, HasSubstr(is_damaged ? "crc32c" : "another incarnation"));
    EXPECT_EQ(router.inbox.Count<WorkerStatusChanged>(), 0);
  }
}

// A link without a router around it. Ends with exactly one on_idle.
class OneLink {
 public:
  explicit OneLink(const std::string& address, FakeInbox<RouterMail>* inbox,
                   int most_statuses = kMostStatuses)
      : link({.address = {Role::kDecode, address},
              .retired = &retired_,
              .most_statuses = most_statuses,
              .on_lost = [this](const WorkerStubs*) { ++num_lost; },
              .on_idle = [this] { idle_.Notify(); }},
             inbox) {
    link.Start();
  }
  ~OneLink() {
    link.Stop();
    link.Stop();
    idle_.WaitForNotification();
  }

 private:
  RetiredChannels retired_;
  absl::Notification idle_;

 public:
  std::atomic<int> num_lost = 0;
  WorkerLink link;
};

TEST(WorkerLinkTest, AWorkerThatGivesStatusesWithoutEndLosesItsConnection) {
  HandmadeWorker worker(Nothing, {.status_interval = absl::ZeroDuration()});
  FakeInbox<RouterMail> inbox;
  OneLink one(worker.address(), &inbox, /*most_statuses=*/50);
  const auto down = inbox.Next<WorkerDown>();
  ASSERT_TRUE(down.has_value());
  EXPECT_THAT(down->reason, HasSubstr("it gives more than 50 statuses a second"));
  EXPECT_GE(inbox.Count<WorkerStatusChanged>(), 50);
}

TEST(WorkerLinkTest, OnlyTheConnectionOfNowIsDistrustedAndEachTimeIsNews) {
  TestWorker worker(Role::kDecode);
  FakeInbox<RouterMail> inbox;
  OneLink one(worker.address(), &inbox);
  ASSERT_TRUE(inbox.Next<WorkerUp>().has_value());
  const WorkerStubs other({Role::kDecode, worker.address()}, nullptr);
  one.link.Distrust(&other);
  EXPECT_FALSE(inbox.Next<WorkerDown>(absl::Milliseconds(500)).has_value());
  for (int lost = 1; lost <= 2; ++lost) {
    one.link.Distrust(one.link.peer().stubs.get());
    const auto down = inbox.Next<WorkerDown>();
    ASSERT_TRUE(down.has_value());
    EXPECT_THAT(down->reason, HasSubstr("damaged or lost"));
    ASSERT_TRUE(inbox.Next<WorkerUp>().has_value());
    EXPECT_EQ(one.num_lost, lost);
  }
}

// Distrusts the first connection before its Watch has begun.
class DoubtingInbox : public FakeInbox<RouterMail> {
 public:
  void Post(RouterMail mail) override {
    const bool is_first = std::holds_alternative<WorkerUp>(mail) && num_up_++ == 0;
    FakeInbox::Post(std::move(mail));
    if (!is_first) return;
    linked.WaitForNotification();
    link->Distrust(link->peer().stubs.get());
  }

  absl::Notification linked;
  WorkerLink* link = nullptr;

 private:
  std::atomic<int> num_up_ = 0;
};

TEST(WorkerLinkTest, AConnectionIsDistrustedBeforeItsWatchBeginsToo) {
  TestWorker worker(Role::kDecode);
  DoubtingInbox inbox;
  OneLink one(worker.address(), &inbox);
  inbox.link = &one.link;
  inbox.linked.Notify();
  EXPECT_TRUE(inbox.Next<WorkerUp>().has_value());
  EXPECT_TRUE(inbox.Next<WorkerDown>().has_value());
  EXPECT_TRUE(inbox.Next<WorkerUp>().has_value());
}

}  // namespace
}  // namespace baton
