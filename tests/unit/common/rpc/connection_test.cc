#include "common/rpc/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ConnectionTest, OurOwnStatusSurvivesTheWire) {
  for (const absl::Status& status :
       {absl::OkStatus(), absl::ResourceExhaustedError("no blocks"),
        absl::InvalidArgumentError("tokens[3] = -1"), absl::AbortedError("handoff")}) {
    EXPECT_EQ(FromGrpc(ToGrpc(status), /*has_reason=*/true), status);
  }
}

TEST(ConnectionTest, TheLibrarysTextIsReplacedBecauseItMayHoldAddresses) {
  const grpc::Status status(grpc::StatusCode::UNAVAILABLE,
                            "failed to connect to all addresses; ipv4:10.1.2.3:443");
  const absl::Status read = FromGrpc(status, /*has_reason=*/false);
  EXPECT_EQ(read.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(read.message()), Not(HasSubstr("10.1.2.3")));
}

TEST(ConnectionTest, EveryCodeHasAReason) {
  for (int code = 0; code <= 16; ++code) {
    EXPECT_STRNE(ReasonOf(static_cast<absl::StatusCode>(code)), "") << code;
  }
}

TEST(ConnectionTest, ADeadlineGivesItsTimeBack) {
  const Duration left = TimeLeft(DeadlineAfter(std::chrono::seconds(100)));
  EXPECT_GT(left, std::chrono::seconds(90));
  EXPECT_LE(left, std::chrono::seconds(100));
}

TEST(ConnectionTest, APassedDeadlineLeavesAMillisecondAndNoDeadlineLeavesZero) {
  EXPECT_EQ(TimeLeft(DeadlineAfter(std::chrono::seconds(-5))), std::chrono::milliseconds(1));
  EXPECT_EQ(TimeLeft(gpr_inf_future(GPR_CLOCK_MONOTONIC)), Duration::zero());
  EXPECT_EQ(TimeLeft(gpr_inf_future(GPR_CLOCK_REALTIME)), Duration::zero());
}

}  // namespace
}  // namespace baton
