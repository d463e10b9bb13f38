#include "common/rpc/worker_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

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
}

TEST(WorkerLinkTest, StatusComesAtLeastTwiceASecondWithoutChange) {
  TestWorker worker(Role::kDecode);
  TestRouter router({{Role::kDecode, worker.address()}});
  ASSERT_TRUE(router.inbox.Next<WorkerStatusChanged>().has_value());
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(router.inbox.Next<WorkerStatusChanged>(absl::Milliseconds(800)).has_value());
  }
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
  EXPECT_EQ(router.inbox.Count<WorkerUp>(), 0);
}

}  // namespace
}  // namespace baton
