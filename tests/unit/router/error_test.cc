#include "router/error.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(ErrorTest, CarriesTheFieldAndTheCode) {
  const absl::Status status = WithErrorCode(InvalidField("stop", "stop is empty."), "bad");
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(), "stop is empty.");
  EXPECT_EQ(ErrorParam(status), "stop");
  EXPECT_EQ(ErrorCode(status), "bad");
  EXPECT_EQ(ErrorParam(WithErrorParam(absl::NotFoundError("x"), "model")), "model");
}

TEST(ErrorTest, TellsAQuotaFromOurLoad) {
  EXPECT_TRUE(IsQuotaExceeded(QuotaExceeded("x")));
  EXPECT_TRUE(absl::IsResourceExhausted(QuotaExceeded("x")));
  EXPECT_FALSE(IsQuotaExceeded(absl::ResourceExhaustedError("x")));
  EXPECT_EQ(ErrorParam(absl::ResourceExhaustedError("x")), "");
}

TEST(ErrorTest, ARequestThatIsTooLargeIsInvalidAndSaysTheLimit) {
  const absl::Status status = RequestTooLarge(2001, 2000);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_TRUE(IsRequestTooLarge(status));
  EXPECT_EQ(status.message(), "The request has 2001 bytes; at most 2000 are allowed.");
  EXPECT_FALSE(IsRequestTooLarge(InvalidField("n", "n is 0.")));
}

}  // namespace
}  // namespace baton
