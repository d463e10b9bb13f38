#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "tests/sim/cluster.h"

namespace baton::sim {
namespace {

#ifdef BATON_SANITIZED
constexpr uint64_t kDefaultSeeds = 1000;
#else
constexpr uint64_t kDefaultSeeds = 1000;
#endif

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

TEST(SimulatedClusterTest, EverySeedKeepsTheInvariants) {
  const uint64_t first = FromEnvironment("BATON_SIM_FIRST_SEED", 1);
  const uint64_t count = FromEnvironment("BATON_SIM_SEEDS", kDefaultSeeds);
  int64_t events = 0, ok = 0, failed = 0, preemptions = 0, revoked = 0, requeued = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Cluster cluster(seed, DrawScenario(seed));
    const std::string violation = cluster.Run();
    ASSERT_EQ(violation, "") << "seed " << seed
                             << "; replay with BATON_SIM_SEEDS=1 BATON_SIM_FIRST_SEED=" << seed;
    events += cluster.num_events();
    ok += cluster.num_ok();
    failed += cluster.num_failed();
    preemptions += cluster.num_preemptions();
    revoked += cluster.num_revoked();
    requeued += cluster.router_counters().requeued;
  }
  std::printf(
      "%ld seeds, %ld events, %ld requests ok, %ld ended with an error, %ld preemptions, "
      "%ld revoked reservations, %ld requeued\n",
      static_cast<long>(count), events, ok, failed, preemptions, revoked, requeued);
  if (count < 100) return;
  // A simulator that never gets into trouble proves nothing.
  EXPECT_GT(ok, 0);
  EXPECT_GT(failed, 0);
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(revoked, 0);
  EXPECT_GT(requeued, 0);
}

TEST(SimulatedClusterTest, AnswersAllRequestsWithoutFaults) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Scenario scenario = DrawScenario(seed);
    scenario.faults = {};
    scenario.cancel_rate = scenario.deadline_rate = scenario.crash_rate = 0;
    Cluster cluster(seed, scenario);
    ASSERT_EQ(cluster.Run(), "") << "seed " << seed;
    EXPECT_EQ(cluster.num_ok(), scenario.num_requests + 1);  // And the probe.
    EXPECT_EQ(cluster.num_failed(), 0);
  }
}

TEST(SimulatedClusterTest, ASeedReplaysToTheSameTrace) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Cluster first(seed, DrawScenario(seed));
    Cluster second(seed, DrawScenario(seed));
    first.Run();
    second.Run();
    EXPECT_EQ(first.trace_digest(), second.trace_digest()) << "seed " << seed;
    EXPECT_EQ(first.num_events(), second.num_events()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace baton::sim
