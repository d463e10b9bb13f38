#include "deploy/cli/nearest_option.h"

#include "gtest/gtest.h"

namespace baton::cli {
namespace {

TEST(NearestOptionTest, FindsTheNameThatWasMeant) {
  EXPECT_EQ(NearestName("--modle", {"--dir", "--model", "--http"}), "--model");
  EXPECT_EQ(NearestName("--blok-size", {"--block-size", "--num-blocks"}), "--block-size");
  EXPECT_EQ(NearestName("stauts", {"up", "down", "status"}), "status");
}

TEST(NearestOptionTest, SaysNothingWhenNothingIsNear) {
  EXPECT_EQ(NearestName("--frobnicate", {"--dir", "--model"}), "");
  EXPECT_EQ(NearestName("", {"--dir"}), "");
  EXPECT_EQ(NearestName("--model", {}), "");
}

}  // namespace
}  // namespace baton::cli
