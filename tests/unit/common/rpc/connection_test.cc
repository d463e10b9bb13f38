#include "common/rpc/connection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <string_view>

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

absl::Status FromGrpc(const grpc::Status& status, const std::string& reason, bool is_late) {
  return StatusOf({.code = static_cast<absl::StatusCode>(status.error_code()),
                   .message = status.error_message(),
                   .reason = reason,
                   .is_late = is_late});
}

TEST(ConnectionTest, OurOwnStatusSurvivesTheWire) {
  for (const absl::Status& status :
       {absl::OkStatus(), absl::ResourceExhaustedError("no blocks"),
        absl::InvalidArgumentError("tokens[3] = -1"), absl::AbortedError("handoff")}) {
    const std::string reason = status.ok() ? "" : ReasonOf(status.code());
    EXPECT_EQ(FromGrpc(ToGrpc(status), reason, /*is_late=*/false), status);
  }
}

TEST(ConnectionTest, TheLibrarysTextIsReplacedBecauseItMayHoldAddresses) {
  const grpc::Status status(grpc::StatusCode::UNAVAILABLE,
                            "failed to connect to all addresses; ipv4:10.1.2.3:443");
  const absl::Status read = FromGrpc(status, "", /*is_late=*/false);
  EXPECT_EQ(read.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(read.message()), Not(HasSubstr("10.1.2.3")));
}

TEST(ConnectionTest, AStatusOfTheLibraryIsNoWordOfThePeer) {
  const grpc::Status cancelled(grpc::StatusCode::CANCELLED, "text");
  EXPECT_TRUE(absl::IsCancelled(FromGrpc(cancelled, "", /*is_late=*/true)));
  for (int code = 2; code <= 16; ++code) {
    const grpc::Status status(static_cast<grpc::StatusCode>(code), "text");
    EXPECT_EQ(FromGrpc(status, "", /*is_late=*/false).code(), absl::StatusCode::kUnavailable)
        << code;
  }
  const grpc::Status late(grpc::StatusCode::DEADLINE_EXCEEDED, "text");
  EXPECT_TRUE(absl::IsDeadlineExceeded(FromGrpc(late, "", /*is_late=*/true)));
}

TEST(ConnectionTest, AStatusThatWasDamagedOnItsWayIsNotBelieved) {
  const std::string reason = ReasonOf(absl::StatusCode::kResourceExhausted);
  for (int code = 0; code <= 16; ++code) {
    const absl::Status read =
        FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(code), "text"), reason, false);
    const bool is_whole = code == static_cast<int>(absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(absl::IsResourceExhausted(read), is_whole) << code;
    EXPECT_EQ(absl::IsDataLoss(read), !is_whole) << code;
  }
}

TEST(ConnectionTest, WhatWasDamagedOrLostIsOfTheConnectionAndAWorkersOwnWordIsNot) {
  const auto reason = [](absl::StatusCode code) { return ReasonOf(code); };
  const absl::Status lost = absl::UnavailableError("");
  EXPECT_TRUE(IsOfTheConnection(lost, ""));
  EXPECT_TRUE(IsOfTheConnection(lost, reason(absl::StatusCode::kAborted)));
  EXPECT_FALSE(IsOfTheConnection(lost, reason(absl::StatusCode::kUnavailable)));
  // A request that arrived damaged.
  EXPECT_TRUE(IsOfTheConnection(absl::DataLossError(""), reason(absl::StatusCode::kDataLoss)));
  for (const absl::Status& own : {absl::OkStatus(), absl::DeadlineExceededError(""),
                                  absl::CancelledError(""), absl::ResourceExhaustedError("")}) {
    EXPECT_FALSE(IsOfTheConnection(own, "")) << own;
  }
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

// liveness_test shows that pings notice a hang; here is how soon, whatever the machine does.
TEST(ConnectionTest, PingsNoticeAHangWithinTheBoundOfAWorkerThatStands) {
  const grpc::ChannelArguments arguments = ClusterChannelArguments();
  const grpc_channel_args args = arguments.c_channel_args();
  int ms = 0;
  for (size_t i = 0; i < args.num_args; ++i) {
    const std::string_view key = args.args[i].key;
    if (key == GRPC_ARG_KEEPALIVE_TIME_MS || key == GRPC_ARG_KEEPALIVE_TIMEOUT_MS) {
      ms += args.args[i].value.integer;
    }
  }
  EXPECT_GT(ms, 0);
  EXPECT_LT(ms, 2500);
}

}  // namespace
}  // namespace baton
