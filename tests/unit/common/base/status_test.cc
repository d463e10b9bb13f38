#include "common/base/status.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  ASSIGN_OR_RETURN(const int half, Half(value));
  ASSIGN_OR_RETURN(int quarter, Half(half));
  return quarter;
}

absl::Status CheckEven(int value) {
  RETURN_IF_ERROR(Half(value).status());
  return absl::OkStatus();
}

TEST(StatusMacrosTest, PassTheFirstErrorOn) {
  EXPECT_EQ(Quarter(6).status(), absl::InvalidArgumentError("odd"));
  EXPECT_EQ(CheckEven(3), absl::InvalidArgumentError("odd"));
}

TEST(StatusMacrosTest, GoOnWithTheValue) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_TRUE(CheckEven(2).ok());
}

}  // namespace
}  // namespace baton
