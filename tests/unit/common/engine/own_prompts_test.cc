// Prompts that a decode worker computes in a prefill worker's place: a quarter of a step's time
// while answers run.
#include <chrono>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/common/engine/engine_harness.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

class OwnPromptsTest : public EngineHarness {
 protected:
  void SetUp() override { Create({.chunk_tokens = 2048}, 1024); }
  std::unique_ptr<Sequence> Own(CallId call, int32_t length) {
    auto sequence = Prompt(call, length);
    sequence->own_prompt = true;
    return sequence;
  }
};

// After a step of its whole budget the rate is known.
TEST_F(OwnPromptsTest, BesideAnAnswerAStepIsToLastAQuarterOfItsBudget) {
  engine_->Add(Own(1, 1000));
  engine_->Add(Decoding(2, 5));
  Start();
  Finish();
  // 63 tokens took 250 ms: less than 32 are never worth a step.
  EXPECT_EQ(Lengths(*Start()), (std::vector<int32_t>{32, 1}));
  Finish(60, milliseconds(31));  // Half of what is allowed.
  EXPECT_EQ(Lengths(*Start()), (std::vector<int32_t>{64, 1}));
}

TEST_F(OwnPromptsTest, WithoutAnAnswerItIsTheWholeStep) {
  engine_->Add(Own(1, 1000));
  Start();
  Finish();
  EXPECT_THAT(Lengths(*Start()), ElementsAre(64));
}

TEST_F(OwnPromptsTest, OthersAreNotHeldBackAndAllOwnOnesShareTheQuarter) {
  engine_->Add(Own(1, 100));
  engine_->Add(Own(2, 1000));
  engine_->Add(Decoding(4, 5));
  Start();
  Finish();
  engine_->Add(Prompt(3, 200));  // Was preempted.
  const StepPlan* plan = Start();
  EXPECT_EQ(Calls(*plan), (std::vector<uint64_t>{1, 3, 4}));
  EXPECT_EQ(Lengths(*plan), (std::vector<int32_t>{32, 31, 1}));
}

TEST_F(OwnPromptsTest, TheirTokensAreCountedUntilTheFirstIsSampled) {
  engine_->Add(Own(1, 40));
  engine_->Add(Prompt(2, 10));
  EXPECT_EQ(engine_->own_prompt_tokens(kNever), 40);
  EXPECT_EQ(engine_->own_prompt_tokens_per_s(), 0);
  Start();
  Finish();
  EXPECT_EQ(engine_->own_prompt_tokens(kNever), 0);
  EXPECT_DOUBLE_EQ(engine_->own_prompt_tokens_per_s(), 160);  // 40 in 250 ms.
}

TEST_F(OwnPromptsTest, OfThoseThatCameLaterNoneCount) {
  engine_->Add(Own(2, 40));
  engine_->Add(Own(3, 50));
  const Time arrival = Time(std::chrono::seconds(2));
  EXPECT_EQ(engine_->own_prompt_tokens(arrival - milliseconds(1)), 0);
  EXPECT_EQ(engine_->own_prompt_tokens(arrival), 40);
  EXPECT_EQ(engine_->own_prompt_tokens(kNever), 90);
}

TEST_F(OwnPromptsTest, FewTokensTellARateWhereNoneIsKnown) {
  engine_->Add(Own(1, 20));
  Start();
  Finish(60, milliseconds(50));
  EXPECT_DOUBLE_EQ(engine_->own_prompt_tokens_per_s(), 400);
  EXPECT_EQ(engine_->tokens_per_s(), 0) << "routers are told of whole steps alone";
}

TEST_F(OwnPromptsTest, FewTokensBesideManyAnswersAreNoSlowerRate) {
  engine_->Add(Own(1, 64));
  Start();
  Finish(60, milliseconds(64));
  EXPECT_DOUBLE_EQ(engine_->own_prompt_tokens_per_s(), 1000);
  engine_->Add(Own(2, 4));
  Start();
  Finish(60, milliseconds(200));
  EXPECT_DOUBLE_EQ(engine_->own_prompt_tokens_per_s(), 1000);
}

// Of what it finds nobody would tell the scores.
TEST_F(OwnPromptsTest, OneThatIsScoredComesBackWithoutWhatIsCached) {
  for (const bool is_scored : {false, true}) {
    Decoding(1, 12).reset();  // Cached now.
    SamplingParams params;
    params.num_prompt_logprobs = is_scored ? 0 : -1;
    std::unique_ptr<Sequence> own = New(1, 12, params);
    own->own_prompt = true;
    engine_->Add(std::move(own));  // Without blocks, as one that was preempted.
    const StepPlan* plan = Start();
    ASSERT_NE(plan, nullptr);
    EXPECT_THAT(Contexts(*plan), ElementsAre(is_scored ? 0 : 8));
    Finish();
    engine_->Remove(1);
  }
}

}  // namespace
}  // namespace baton
