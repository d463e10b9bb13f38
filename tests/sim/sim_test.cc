#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "tests/sim/cluster.h"

namespace baton::sim {
namespace {

// The rarest of the planted bugs is caught by seed 6,903, the next one by 1,523 (planted_bugs.md).
#ifdef BATON_SANITIZED
constexpr uint64_t kDefaultSeeds = 1000;
#else
constexpr uint64_t kDefaultSeeds = 10000;
#endif

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

uint64_t current_seed = 0;

// A failed CHECK of the code under test ends the process: say for which seed.
void OnAbort(int) {
  std::fprintf(
      stderr, "seed %llu aborted; replay with BATON_SIM_SEEDS=1 BATON_SIM_FIRST_SEED=%llu\n",
      static_cast<unsigned long long>(current_seed), static_cast<unsigned long long>(current_seed));
  std::signal(SIGABRT, SIG_DFL);
}

// The same seed once more, with its trace.
std::string Explain(uint64_t seed, const Scenario& scenario) {
  Cluster cluster(seed, scenario);
  cluster.TurnTraceOn();
  const std::string violation = cluster.Run();
  return cluster.Report() + "\n" + violation + "\nseed " + std::to_string(seed) +
         "; replay with BATON_SIM_SEEDS=1 BATON_SIM_FIRST_SEED=" + std::to_string(seed);
}

bool HasGroups(const Scenario& scenario) {
  return std::ranges::count(scenario.windowed, false) > 0;
}

bool HasRanks(const Scenario& scenario) {
  for (const auto& [role, count] : {std::pair(Role::kPrefill, scenario.num_prefill),
                                    std::pair(Role::kDecode, scenario.num_decode)}) {
    for (int i = 0; i < count; ++i) {
      if (scenario.TpOf(role, i) > 1) return true;
    }
  }
  return false;
}

struct Sum {
  int64_t with_ranks = 0;
  int64_t with_groups = 0;
  int64_t events = 0, ok = 0, failed = 0, tokens = 0, lost_with_router = 0, troubles = 0;
  int64_t unexplained = 0, beside_pair = 0;
  std::map<std::string, int64_t> reasons;
  std::map<std::string, uint64_t> reason_seeds;
  WorkerHost::Totals workers;
  RouterCounters routers;
  RouterLedger::Totals router_economy;
  SimStager::Totals staged;
  Fabric::NcclTotals nccl;
  std::array<int64_t, kNumFaults> hits{};

  void Add(uint64_t seed, const Cluster::Totals& t) {
    events += t.events;
    ok += t.ok;
    failed += t.failed;
    tokens += t.tokens;
    lost_with_router += t.lost_with_router;
    troubles += t.troubles;
    unexplained += t.unexplained;
    beside_pair += t.failed_beside_healthy_pair;
    for (const auto& [reason, count] : t.reasons) {
      reasons[reason] += count;
      reason_seeds.emplace(reason, seed);
    }
    workers += t.workers;
    router_economy += t.router_economy;
    staged += t.staged;
    nccl += t.nccl;
    for (size_t f = 0; f < kNumFaults; ++f) hits[f] += t.hits[f];
    for (int64_t RouterCounters::*field : kRouterCounters) routers.*field += t.routers.*field;
  }

  int64_t Hits(Fault fault) const { return hits[static_cast<size_t>(fault)]; }

  void Print(uint64_t seeds) const {
    std::printf(
        "%ld seeds, %ld of them with workers of several ranks, %ld with groups of layers, %ld "
        "events, "
        "%ld troubles; requests: %ld ok, %ld failed, %ld lost with their router; %ld tokens\n",
        static_cast<long>(seeds), with_ranks, with_groups, events, troubles, ok, failed,
        lost_with_router, tokens);
    std::printf(
        "failed without cancel or deadline: %ld; of those beside a healthy pair: %ld (%.3f %% of "
        "all)\n",
        unexplained, beside_pair, 100.0 * double(beside_pair) / double(ok + failed));
    for (const auto& [reason, count] : reasons) {
      std::printf("  %6ld  %s (first seed %ld)\n", count, reason.c_str(),
                  static_cast<long>(reason_seeds.at(reason)));
    }
    std::printf(
        "preemptions %ld, swapped %ld, blocks swapped in %ld, revoked %ld, requeued %ld, moves "
        "%ld, retries %ld, failed handoffs %ld, rebinds %ld, resends %ld, computed on D %ld, "
        "joined %ld of %ld, returned %ld, parked %ld, resumed %ld, of those amid a step %ld, hung "
        "%ld, unanswered %ld, holds expired %ld, stale mail %ld\n",
        workers.preemptions, workers.swaps, workers.blocks_swapped_in, workers.revoked,
        routers.requeued, routers.moves, routers.retries, routers.handoff_failures, workers.rebinds,
        workers.sends, workers.computed_here, workers.joined, routers.joins, routers.returns,
        workers.parked, workers.resumed, workers.economy.resumed_amid_step, routers.hung_workers,
        routers.unanswered, routers.holds_expired, routers.stale_mail);
    PrintEconomy();
    std::printf(
        "control messages: requests damaged %ld, events %ld, ends %ld; events lost %ld, repeated "
        "%ld, misdirected %ld; streams gone mute %ld\n",
        Hits(Fault::kFlipRequest), Hits(Fault::kFlipEvent), Hits(Fault::kFlipEnd),
        Hits(Fault::kLoseMessage), Hits(Fault::kRepeatMessage), Hits(Fault::kMisdirect),
        Hits(Fault::kMuteStream));
    std::printf("by way of a stager: gathered %ld, scattered %ld, without a slot %ld\n",
                staged.gathers, staged.scatters, staged.refused);
    std::printf(
        "over NCCL: batches %ld, pairs up %ld, failed %ld, stuck %ld, slots leaked %ld, "
        "connections of other versions %ld\n",
        nccl.received, nccl.pairs_up, nccl.pairs_failed, nccl.pairs_stuck, nccl.leaked_slots,
        nccl.other_version);
  }

  // Actual numbers, and what the faults and the sizes explain.
  void PrintEconomy() const {
    const RouterLedger::Totals& r = router_economy;
    const WorkerLedger::Totals& w = workers.economy;
    std::printf(
        "starts %ld of at most %ld, on D alone %ld, in another release %ld; holds %ld, held ms %ld "
        "of at most %ld; tokens asked for again %ld of at most %ld\n",
        r.starts, r.may_start, r.alone, r.crossed, r.holds, r.held_ms, r.may_hold_ms, r.asked_again,
        r.may_ask_again);
    std::printf(
        "tokens computed %ld, of those again %ld of at most %ld; swapped out %ld, back %ld, found "
        "cached %ld; copied from other choices %ld; preemptions not judged %ld\n",
        w.computed, w.recomputed, w.may_recompute, w.swapped_out, w.swapped_back, w.found_cached,
        w.copied, w.unjudged);
    std::printf("ended while copied out %ld, in %ld, of those without a row %ld\n",
                w.ended_moving_out, w.ended_moving_in, w.ended_without_row);
  }
};

TEST(SimulatedClusterTest, EverySeedKeepsTheInvariants) {
  std::signal(SIGABRT, OnAbort);
  const uint64_t first = FromEnvironment("BATON_SIM_FIRST_SEED", 1);
  const uint64_t count = FromEnvironment("BATON_SIM_SEEDS", kDefaultSeeds);
  Sum sum;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    current_seed = seed;
    Cluster cluster(seed, DrawScenario(seed));
    const std::string violation = cluster.Run();
    ASSERT_EQ(violation, "") << Explain(seed, DrawScenario(seed));
    sum.Add(seed, cluster.totals());
    sum.with_ranks += HasRanks(DrawScenario(seed)) ? 1 : 0;
    sum.with_groups += HasGroups(DrawScenario(seed)) ? 1 : 0;
  }
  sum.Print(count);
  if (count < 1000) return;
  // A simulator that never gets into trouble proves nothing.
  const WorkerLedger::Totals& economy = sum.workers.economy;
  for (int64_t seen : {sum.workers.preemptions,
                       sum.workers.swaps,
                       sum.workers.blocks_swapped_in,
                       sum.workers.revoked,
                       sum.workers.rebinds,
                       sum.workers.sends,
                       sum.workers.computed_here,
                       sum.workers.resumed,
                       economy.resumed_amid_step,
                       sum.routers.moves,
                       sum.routers.retries,
                       sum.routers.returns,
                       sum.routers.hung_workers,
                       sum.routers.unanswered,
                       sum.router_economy.holds,
                       sum.router_economy.asked_again,
                       sum.router_economy.alone,
                       sum.router_economy.crossed,
                       economy.recomputed,
                       economy.swapped_back,
                       economy.found_cached,
                       economy.copied,
                       economy.ended_moving_out,
                       economy.ended_moving_in,
                       sum.staged.gathers,
                       sum.staged.scatters,
                       sum.staged.refused,
                       sum.nccl.received,
                       sum.nccl.pairs_up,
                       sum.nccl.pairs_failed,
                       sum.nccl.pairs_stuck,
                       sum.nccl.other_version}) {
    EXPECT_GT(seen, 0);
  }
  // Of an abort that hangs while a batch is at NCCL, and of an end amid moves in of which the step
  // has no row, which are rare.
  if (count >= 10000) {
    EXPECT_GT(sum.nccl.leaked_slots, 0);
    EXPECT_GT(economy.ended_without_row, 0);
  }
  // Most further choices find the prompt where they are sent.
  EXPECT_GT(2 * sum.workers.joined, sum.routers.joins);
  EXPECT_GT(sum.routers.joins, 0);
  EXPECT_GT(10 * sum.with_ranks, 4 * static_cast<int64_t>(count));
  EXPECT_GT(10 * sum.with_groups, 2 * static_cast<int64_t>(count));
  // The ledger sees from outside what nearly all of them had computed.
  EXPECT_LT(100 * economy.unjudged, sum.workers.preemptions);
  // Those behind it are a FaultPlan's.
  for (size_t f = 0; f < static_cast<size_t>(Fault::kCrashPrefill); ++f) {
    EXPECT_GT(sum.hits[f], 0) << "fault " << f;
  }
}

TEST(SimulatedClusterTest, ASeedReplaysToTheSameTrace) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Cluster first(seed, DrawScenario(seed));
    Cluster second(seed, DrawScenario(seed));
    second.TurnTraceOn();
    first.Run();
    second.Run();
    EXPECT_EQ(first.world().trace_digest(), second.world().trace_digest()) << "seed " << seed;
    EXPECT_EQ(first.world().num_events(), second.world().num_events()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace baton::sim
