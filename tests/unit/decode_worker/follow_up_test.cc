// A decode worker with two steps in flight: when it wants to be woken, and what its calls hear.
#include "gmock/gmock.h"
#include "tests/unit/decode_worker/decode_node_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::Pair;

class DecodeFollowUpTest : public DecodeNodeHarness {
 protected:
  static constexpr EngineOptions kEngine{
      .chunk_tokens = 8, .steps_in_flight = 2, .follow_up_lead = milliseconds(2)};
  DecodeFollowUpTest() : DecodeNodeHarness(SmallModel(0), kEngine) {}
  // The step that runs ends 20 ms later.
  void End(size_t plan, int32_t token) {
    now_ += milliseconds(20);
    Handle(DoneWith(*runner_.plans[plan], token));
  }
};

// Nobody tells it anything while a step runs.
TEST_F(DecodeFollowUpTest, ItIsWokenWhenAFollowUpIsDue) {
  Run(1, 5);
  node_.Step(now_);
  ASSERT_EQ(runner_.plans.size(), 2u);
  End(0, 55);
  EXPECT_EQ(runner_.plans.size(), 2u);
  EXPECT_EQ(node_.NextDeadline(), now_ + milliseconds(18));
  now_ += milliseconds(18);
  node_.Step(now_);
  ASSERT_EQ(runner_.plans.size(), 3u);
  EXPECT_GT(node_.NextDeadline(), now_);
}

// Its last word comes with its last token, not with the row that is computed for nothing.
TEST_F(DecodeFollowUpTest, ACallEndsWithItsTokenAndItsBlocksWithTheWastedRow) {
  Run(1, 5);
  node_.Step(now_);
  ASSERT_EQ(runner_.plans.size(), 2u);
  End(0, model_.eos_token_ids[0]);
  EXPECT_EQ(outbox_.Closed(1), absl::StatusCode::kOk);
  EXPECT_THAT(Tokens(1), ElementsAre(Pair(5, 50), Pair(6, model_.eos_token_ids[0])));
  EXPECT_FALSE(node_.idle());
  EXPECT_EQ(node_.Audit(now_).num_unowned, 0);
  End(1, 60);
  EXPECT_TRUE(node_.idle());
  EXPECT_THAT(Tokens(1), testing::SizeIs(2));
}

TEST_F(DecodeFollowUpTest, ACancelEndsACallOfBothSteps) {
  Run(1, 5);
  Run(2, 5);
  while (runner_.plans.size() < 2) node_.Step(now_);
  Handle(CallBroken{1});
  End(0, 55);
  EXPECT_FALSE(node_.idle());
  End(1, 56);
  EXPECT_THAT(Tokens(1), testing::SizeIs(1));
  Handle(CallBroken{2});
  for (size_t plan = 2; plan < runner_.plans.size(); ++plan) End(plan, 57);
  EXPECT_TRUE(node_.idle());
  EXPECT_EQ(pool_.num_available(), pool_.num_blocks());
}

}  // namespace
}  // namespace baton
