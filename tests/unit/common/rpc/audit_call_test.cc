#include "common/rpc/audit_call.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/unit/common/rpc/test_cluster.h"

namespace baton {
namespace {

TEST(AuditCallTest, BringsWhatTheWorkerHolds) {
  TestWorker worker(Role::kDecode);
  std::jthread node([&] {
    auto asked = worker.inbox.Next<WorkerAuditAsked>();
    ASSERT_TRUE(asked.has_value());
    WorkerAudit held{.incarnation = 7, .blocks = {}, .num_unowned = 3, .calls = {}};
    held.calls.push_back({.sequence = {.router = 99, .counter = 5},
                          .attempt = 2,
                          .state = "RUNNING",
                          .num_blocks = 4,
                          .age = std::chrono::seconds(6)});
    asked->answer(held);
  });
  const absl::StatusOr<WorkerAudit> audit =
      CallAudit({Role::kDecode, worker.address()}, nullptr, std::chrono::seconds(10));
  ASSERT_TRUE(audit.ok()) << audit.status();
  EXPECT_EQ(audit->incarnation, 7u);
  EXPECT_EQ(audit->num_unowned, 3);
  ASSERT_EQ(audit->calls.size(), 1u);
  EXPECT_EQ(ToString(audit->calls[0].sequence), "0000000000000063-5");
  EXPECT_EQ(audit->calls[0].state, "RUNNING");
  EXPECT_EQ(audit->calls[0].age, std::chrono::seconds(6));
}

TEST(AuditCallTest, WorkerThatIsNotThereIsAnErrorWithinTheLimit) {
  std::string address;
  {
    const TestWorker gone(Role::kDecode);
    address = gone.address();
  }
  const absl::StatusOr<WorkerAudit> audit =
      CallAudit({Role::kDecode, address}, nullptr, std::chrono::seconds(10));
  EXPECT_FALSE(audit.ok());
}

TEST(AuditCallTest, WorkerThatDoesNotAnswerIsGivenUp) {
  TestWorker worker(Role::kDecode);
  const absl::StatusOr<WorkerAudit> audit =
      CallAudit({Role::kDecode, worker.address()}, nullptr, std::chrono::seconds(3));
  EXPECT_TRUE(absl::IsDeadlineExceeded(audit.status())) << audit.status();
  EXPECT_TRUE(worker.inbox.Next<WorkerAuditAsked>().has_value());  // And drops it.
}

TEST(AuditCallTest, WorkerWithAFullInboxRefuses) {
  const TestWorker worker(Role::kDecode, /*incarnation=*/7, /*port=*/0, /*full=*/true);
  const absl::StatusOr<WorkerAudit> audit =
      CallAudit({Role::kDecode, worker.address()}, nullptr, std::chrono::seconds(10));
  EXPECT_EQ(audit.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace baton
