// Workers that hang are found in time whatever they went through before, and slow ones are let be.
#include <string>

#include "gtest/gtest.h"
#include "tests/sim/cluster.h"

namespace baton::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kHangLimit = RouterNodeOptions().hang_limit;
// The last sign of progress is on its way for some milliseconds, and statuses are 50 ms apart.
constexpr Duration kMargin = milliseconds(300);
constexpr uint64_t kSeeds = 20;

Scenario OneOfEach() {
  Scenario s;
  s.chunk_tokens = 16;
  // Never met, but with it requests may fail: the trouble that the tests make is not drawn.
  s.faults[static_cast<size_t>(Fault::kStepError)] = 1e-12;
  return s;
}

// A cluster in which `role`'s worker is the one that things happen to.
class Ward {
 public:
  Ward(uint64_t seed, Role role)
      : cluster_(seed, OneOfEach()), worker_(role == Role::kPrefill ? 0 : 1) {
    cluster_.StartAll();
    Run(milliseconds(100));
  }

  Cluster& cluster() { return cluster_; }
  FakeRunner& runner() { return cluster_.worker(worker_).runner(); }
  Time now() { return cluster_.world().now(); }
  bool IsHealthy() { return cluster_.router(0).IsHealthy(worker_); }
  int64_t num_hung() { return cluster_.router(0).totals().hung_workers; }
  void Run(Duration time) { cluster_.RunUntil(now() + time); }
  void Pause(Duration time) { cluster_.PauseWorker(worker_, time); }
  void Stall(Duration time) { cluster_.StallWorker(worker_, time); }

  uint64_t Ask(int32_t max_tokens = 8) {
    ValidRequest request;
    request.prompts = {{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, ++salt_}};
    request.sampling.max_tokens = max_tokens;
    request.sampling.ignore_eos = true;
    request.timeout = seconds(600);
    return cluster_.clients().Submit(0, request);
  }
  // Runs until something is true; false when it takes longer than `most`.
  template <typename Condition>
  bool RunUntil(Condition condition, Duration most) {
    const Time limit = now() + most;
    while (!condition()) {
      if (!cluster_.RunOne(limit)) return false;
    }
    return true;
  }
  bool AskAndCompute() {
    Ask();
    return RunUntil([this] { return cluster_.worker(worker_).computing(); }, seconds(1));
  }
  // From now on; more than the limit when it is not found.
  Duration TimeToNotice() {
    const Time since = now();
    RunUntil([this] { return !IsHealthy(); }, 10 * kHangLimit);
    return now() - since;
  }
  bool Recovers() {
    return RunUntil([this] { return IsHealthy(); }, seconds(5));
  }
  // Answers so many requests, one after the other.
  bool Serve(int count, int32_t max_tokens = 8) {
    for (int i = 0; i < count; ++i) {
      const uint64_t key = Ask(max_tokens);
      const auto ended = [&] { return cluster_.clients().ended(key) != nullptr; };
      if (!RunUntil(ended, seconds(60)) || !cluster_.clients().ended(key)->ok()) return false;
    }
    return true;
  }
  std::string Finish() {
    cluster_.Heal();
    cluster_.RunToQuiet();
    return cluster_.violation();
  }

 private:
  Cluster cluster_;
  int worker_;
  int32_t salt_ = 40;
};

class HangTest : public testing::TestWithParam<Role> {};

TEST_P(HangTest, IsFoundInTimeAfterASlowStartAfterAStopAndAfterAHang) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Ward ward(seed, GetParam());
    // The first layer takes more than twice T_hang.
    ward.Stall(seconds(6));
    ASSERT_TRUE(ward.Serve(1));
    EXPECT_EQ(ward.num_hung(), 0);
    ASSERT_TRUE(ward.Serve(2));
    for (int stop = 0; stop < 2; ++stop) {
      ASSERT_TRUE(ward.AskAndCompute());
      ward.Pause(seconds(8));
      EXPECT_LE(ward.TimeToNotice(), kHangLimit + kMargin) << "stop " << stop;
      ward.Run(seconds(9));
      ASSERT_TRUE(ward.Recovers());
      ASSERT_TRUE(ward.Serve(1));
    }
    for (int hang = 0; hang < 2; ++hang) {
      ASSERT_TRUE(ward.AskAndCompute());
      ward.Stall(seconds(8));
      const Duration found = ward.TimeToNotice();
      EXPECT_LE(found, kHangLimit + kMargin) << "hang " << hang;
      EXPECT_GE(found, kHangLimit - kMargin) << "hang " << hang;
      ward.Run(seconds(8));
      ASSERT_TRUE(ward.Recovers());
      ASSERT_TRUE(ward.Serve(1));
    }
    EXPECT_EQ(ward.Finish(), "");
  }
}

TEST_P(HangTest, AStopThatIsOverSoonerDoesNotMakeItPatient) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Ward ward(seed, GetParam());
    ASSERT_TRUE(ward.Serve(2));
    for (int stop = 0; stop < 3; ++stop) {  // Too short to be noticed.
      ASSERT_TRUE(ward.AskAndCompute());
      ward.Pause(milliseconds(1500));
      ASSERT_TRUE(ward.Serve(1));
    }
    EXPECT_EQ(ward.num_hung(), 0);
    ASSERT_TRUE(ward.AskAndCompute());
    ward.Stall(seconds(8));
    EXPECT_LE(ward.TimeToNotice(), kHangLimit + kMargin);
    EXPECT_EQ(ward.Finish(), "");
  }
}

TEST_P(HangTest, SlowLayersAreNoHang) {
  Ward ward(1, GetParam());
  ward.runner().SetLayerTime(milliseconds(400));
  ASSERT_TRUE(ward.Serve(2));
  ward.runner().SetLayerTime(seconds(4));  // Ten times as long: 20 are allowed.
  ward.Ask();
  ward.Run(seconds(20));
  EXPECT_EQ(ward.num_hung(), 0);
}

TEST_P(HangTest, AfterSlowLayersAHangIsFoundWithinTheMost) {
  Ward ward(1, GetParam());
  ward.runner().SetLayerTime(seconds(2));
  ASSERT_TRUE(ward.Serve(2));
  ASSERT_TRUE(ward.AskAndCompute());
  ward.Stall(seconds(600));
  EXPECT_LE(ward.TimeToNotice(), 8 * kHangLimit + kMargin);
}

TEST_P(HangTest, AfterSlowLayersThatAreOverAHangIsFoundAsSoonAsEver) {
  Ward ward(1, GetParam());
  ward.runner().SetLayerTime(seconds(1));
  ASSERT_TRUE(ward.Serve(2));
  ward.runner().SetLayerTime(milliseconds(1));
  ASSERT_TRUE(ward.Serve(40));
  ASSERT_TRUE(ward.AskAndCompute());
  ward.Stall(seconds(60));
  EXPECT_LE(ward.TimeToNotice(), kHangLimit + kMargin);
}

TEST_P(HangTest, AfterASlowFirstStepAHangIsFoundAsSoonAsEver) {
  Ward ward(1, GetParam());
  ward.runner().SetLayerTime(seconds(1));
  ASSERT_TRUE(ward.Serve(1, /*max_tokens=*/2));  // One step on each side.
  ward.runner().SetLayerTime(milliseconds(1));
  ASSERT_TRUE(ward.Serve(1));
  ASSERT_TRUE(ward.AskAndCompute());
  ward.Stall(seconds(60));
  EXPECT_LE(ward.TimeToNotice(), kHangLimit + kMargin);
}

INSTANTIATE_TEST_SUITE_P(Sides, HangTest, testing::Values(Role::kPrefill, Role::kDecode),
                         [](const auto& info) {
                           return info.param == Role::kPrefill ? "Prefill" : "Decode";
                         });

}  // namespace
}  // namespace baton::sim
