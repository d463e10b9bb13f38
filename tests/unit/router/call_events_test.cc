// What calls tell, good and bad, and what of it counts. Ranges are in event_checks_test.cc.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/router/recovery_harness.h"

namespace baton {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using Code = absl::StatusCode;

class CallEventsTest : public RecoveryHarness {
 protected:
  Time LastToken(int32_t worker) const { return node_->View().workers[worker].last_token; }
};

TEST_F(CallEventsTest, TheFirstTokenOfADecodeWorkerProvesBothAndLaterOnesItself) {
  ToPrefilling(1);
  now_ += seconds(1);
  Prefilled(prefill_call(), 3, 50);
  Tokens(decode_call(), 3, 50);
  EXPECT_EQ(LastToken(1), Time{}) << "the prefill worker has told it first";
  now_ += seconds(1);
  Tokens(decode_call(), 4, 51);
  EXPECT_EQ(LastToken(0), now_);
  EXPECT_EQ(LastToken(1), now_);
  now_ += seconds(1);
  Tokens(decode_call(), 5, 52);
  EXPECT_EQ(LastToken(0), now_ - seconds(1));
  EXPECT_EQ(LastToken(1), now_);
}

}  // namespace
}  // namespace baton
