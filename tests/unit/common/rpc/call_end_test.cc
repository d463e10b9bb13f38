#include "common/rpc/call_end.h"

#include <gtest/gtest.h>

#include <string>

namespace baton {
namespace {

using absl::StatusCode;

TEST(CallEndTest, APeersOwnWordIsBelievedWithItsText) {
  const PeerEnd end{.code = StatusCode::kAborted, .message = "why", .reason = "ABORTED"};
  EXPECT_EQ(StatusOf(end), absl::AbortedError("why"));
  EXPECT_TRUE(StatusOf({}).ok());
}

TEST(CallEndTest, ACodeThatItsReasonDoesNotFitIsNotBelieved) {
  for (int sent = 1; sent <= 16; ++sent) {
    const std::string reason = ReasonOf(StatusCode(sent));
    for (int code = 0; code <= 16; ++code) {
      if (code == sent) continue;
      const absl::Status status = StatusOf({.code = StatusCode(code), .reason = reason});
      EXPECT_TRUE(absl::IsDataLoss(status)) << sent << " read as " << code << ": " << status;
      EXPECT_TRUE(IsOfTheConnection(status, reason)) << sent << " read as " << code;
    }
  }
}

TEST(CallEndTest, AnErrorWithoutAReasonIsNoWordOfThePeer) {
  for (int code = 1; code <= 16; ++code) {
    const PeerEnd end{.code = StatusCode(code), .message = "from 10.0.0.1"};
    const absl::Status status = StatusOf(end);
    EXPECT_EQ(status.code(), code == 1 ? StatusCode::kCancelled : StatusCode::kUnavailable);
    EXPECT_EQ(status.message().find("10.0.0.1"), std::string::npos);
    PeerEnd late = end;
    late.is_late = true;
    EXPECT_EQ(StatusOf(late).code(),
              code == 1 ? StatusCode::kCancelled : StatusCode::kDeadlineExceeded);
  }
}

TEST(CallEndTest, WhatThePeerDidNotSayIsOfTheConnectionAndSoIsDamage) {
  EXPECT_TRUE(IsOfTheConnection(absl::UnavailableError(""), ""));
  EXPECT_FALSE(IsOfTheConnection(absl::UnavailableError(""), "WORKER_UNAVAILABLE"));
  EXPECT_TRUE(IsOfTheConnection(absl::DataLossError(""), "BAD_PEER_DATA"));
  EXPECT_FALSE(IsOfTheConnection(absl::ResourceExhaustedError(""), "OVERLOADED"));
  EXPECT_FALSE(IsOfTheConnection(absl::CancelledError(""), ""));
  EXPECT_FALSE(IsOfTheConnection(absl::OkStatus(), ""));
}

}  // namespace
}  // namespace baton
