#include "router/generation/error.h"

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

}  // namespace
}  // namespace baton
