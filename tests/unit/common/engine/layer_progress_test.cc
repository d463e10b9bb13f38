#include "common/engine/layer_progress.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class LayerProgressTest : public testing::Test {
 protected:
  // One step ends, so that the worker is warm, and the next one begins.
  LayerProgressTest() {
    progress_.OnLook(now_, true);
    progress_.OnStepDone(now_);
  }
  // The node is woken as it asks to be, until so much time has passed.
  void Compute(Duration time) {
    const Time end = now_ + time;
    while (progress_.next_look() < end) {
      now_ = std::max(now_, progress_.next_look());
      progress_.OnLook(now_, true);
    }
    now_ = end;
  }
  void Layer(Duration time) {
    Compute(time);
    progress_.OnMark(now_);
  }
  void Layers(int count, Duration time) {
    for (int i = 0; i < count; ++i) Layer(time);
  }

  Time now_{seconds(1000)};
  LayerProgress progress_;
};

TEST_F(LayerProgressTest, TellsTheLongestThatWasMetTwice) {
  Layers(2, milliseconds(300));
  Layers(5, milliseconds(10));
  EXPECT_EQ(progress_.longest(), milliseconds(300));
  EXPECT_EQ(progress_.count(), 8u);
}

TEST_F(LayerProgressTest, OneStallSaysNothingOfLayers) {
  Layers(3, milliseconds(20));
  Layer(seconds(4));
  EXPECT_EQ(progress_.longest(), milliseconds(20));
  Layers(3, milliseconds(20));
  EXPECT_EQ(progress_.longest(), milliseconds(20));
}

TEST_F(LayerProgressTest, WhatIsMetInTwoWindowsIsMetTwice) {
  Layer(seconds(4));
  Layers(LayerProgress::kWindow, milliseconds(50));
  Layer(seconds(3));
  EXPECT_EQ(progress_.longest(), seconds(3));
}

TEST_F(LayerProgressTest, RemembersTheLastLayersAndForgetsThoseBefore) {
  Layers(2, seconds(1));
  Layers(LayerProgress::kWindow, milliseconds(100));
  EXPECT_EQ(progress_.longest(), seconds(1));
  Layers(LayerProgress::kWindow, milliseconds(100));
  EXPECT_EQ(progress_.longest(), milliseconds(100));
}

// Else a worker that decodes by graphs would always be one of which nobody knows how long it takes.
TEST_F(LayerProgressTest, LayersThatAreToldTogetherEndOneGap) {
  for (int step = 0; step < 3; ++step) {
    Layer(milliseconds(30));
    for (int layer = 1; layer < 4 * LayerProgress::kWindow; ++layer) progress_.OnMark(now_);
    progress_.OnStepDone(now_);
    EXPECT_EQ(progress_.longest(), step == 0 ? Duration::zero() : milliseconds(30));
  }
  EXPECT_EQ(progress_.count(), 1u + 3 * (4 * LayerProgress::kWindow + 1));
}

// The node may take them in several turns.
TEST_F(LayerProgressTest, LayersThatAreToldOneRightBehindTheOtherEndOneGapToo) {
  for (int step = 0; step < 3; ++step) {
    Layer(milliseconds(30));
    for (int layer = 1; layer < 4 * LayerProgress::kWindow; ++layer) {
      Layer(std::chrono::microseconds(5));
    }
    progress_.OnStepDone(now_);
    if (step == 0) continue;
    EXPECT_GE(progress_.longest(), milliseconds(30));
    EXPECT_LT(progress_.longest(), milliseconds(31));
  }
}

TEST_F(LayerProgressTest, DoesNotForgetWhileThereIsNoWork) {
  Layers(2, seconds(1));
  progress_.OnLook(now_, false);
  EXPECT_EQ(progress_.next_look(), kNever);
  now_ += std::chrono::hours(1);
  progress_.OnLook(now_, true);
  EXPECT_EQ(progress_.longest(), seconds(1));
}

TEST_F(LayerProgressTest, TimeWithoutWorkIsNoLayersTime) {
  for (int step = 0; step < 2; ++step) {
    progress_.OnStepDone(now_);
    progress_.OnLook(now_, false);
    now_ += milliseconds(200);
    progress_.OnLook(now_, true);
    Layer(milliseconds(10));
  }
  EXPECT_EQ(progress_.longest(), milliseconds(10));
}

TEST_F(LayerProgressTest, TimeInWhichItsOwnThreadStoodStillIsNoLayersTime) {
  for (int stop = 0; stop < 3; ++stop) {
    Compute(milliseconds(30));
    now_ += seconds(8);  // Nobody woke it.
    Layer(milliseconds(30));
  }
  // It counts as awake until it should have been woken.
  EXPECT_EQ(progress_.longest(), LayerProgress::kPulse + milliseconds(30));
}

TEST_F(LayerProgressTest, WakingALittleLateIsNotStandingStill) {
  for (int layer = 0; layer < 2; ++layer) {
    for (int look = 0; look < 5; ++look) progress_.OnLook(now_ += LayerProgress::kLate, true);
    progress_.OnMark(now_);
  }
  EXPECT_EQ(progress_.longest(), 5 * LayerProgress::kLate);
}

TEST_F(LayerProgressTest, StandsStillWhenNoLayerComesForAMinuteThoughOneWasDue) {
  Layers(3, milliseconds(20));
  Compute(LayerProgress::kMostLayer - seconds(1));
  EXPECT_FALSE(progress_.stands_still());
  Compute(seconds(2));
  EXPECT_TRUE(progress_.stands_still());
  progress_.OnMark(now_);
  EXPECT_FALSE(progress_.stands_still());
}

TEST_F(LayerProgressTest, StandsStillOnlyBeyondTwentyOfItsSlowLayers) {
  Layers(3, seconds(10));
  Compute(seconds(190));
  EXPECT_FALSE(progress_.stands_still());
  Compute(seconds(11));
  EXPECT_TRUE(progress_.stands_still());
}

TEST_F(LayerProgressTest, WithoutAStepOrAwakeNobodyStandsStill) {
  progress_.OnLook(now_, false);
  progress_.OnLook(now_ += std::chrono::hours(1), false);
  EXPECT_FALSE(progress_.stands_still());
  progress_.OnLook(now_, true);
  for (int stop = 0; stop < 5; ++stop) {
    now_ += std::chrono::hours(1);  // The process is stopped.
    progress_.OnLook(now_, true);
  }
  EXPECT_FALSE(progress_.stands_still());
}

TEST_F(LayerProgressTest, LooksAfterEachPulseWhileItComputes) {
  EXPECT_EQ(progress_.next_look(), now_ + LayerProgress::kPulse);
  progress_.OnLook(now_ += milliseconds(70), true);
  EXPECT_EQ(progress_.next_look(), now_ + LayerProgress::kPulse);
}

TEST(ColdLayerProgressTest, TheFirstStepMayReadWeightsForTenMinutes) {
  LayerProgress progress;
  Time now{seconds(1000)};
  progress.OnLook(now, true);
  const auto compute = [&](Duration time) {
    for (const Time end = now + time; now < end;) {
      progress.OnLook(now += LayerProgress::kPulse, true);
    }
  };
  compute(LayerProgress::kMostFirst - seconds(1));
  EXPECT_FALSE(progress.stands_still());
  compute(seconds(1));
  EXPECT_TRUE(progress.stands_still());
}

TEST(ColdLayerProgressTest, TheFirstStepIsForgottenWhenItEnds) {
  LayerProgress progress;
  Time now{};
  progress.OnLook(now, true);
  constexpr int kLayers = 2 * LayerProgress::kWindow;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int look = 0; look < 30; ++look) progress.OnLook(now += LayerProgress::kPulse, true);
    progress.OnMark(now);
  }
  EXPECT_EQ(progress.longest(), seconds(3));
  progress.OnStepDone(now);
  EXPECT_EQ(progress.longest(), Duration::zero());
  EXPECT_EQ(progress.count(), kLayers + 1u);
  for (int layer = 0; layer < 2; ++layer) progress.OnMark(now += milliseconds(200));
  progress.OnStepDone(now);
  EXPECT_EQ(progress.longest(), milliseconds(200));
}

}  // namespace
}  // namespace baton
