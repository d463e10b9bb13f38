#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gtest/gtest.h"
#include "tests/sim/cluster.h"

namespace baton::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::array kKinds = {Fault::kDropCall,      Fault::kLoseEvent,   Fault::kDuplicate,
                               Fault::kBreakTransfer, Fault::kLoseAck,     Fault::kCrashPrefill,
                               Fault::kCrashDecode,   Fault::kCancelFirst, Fault::kCancelSecond};

// Places faults at numbered points: every message, frame and verdict, and the moment after every
// event.
class Placement : public FaultPlan {
 public:
  explicit Placement(std::vector<int64_t> points) : points_(std::move(points)) {}

  bool Hit(Fault fault, uint64_t point) override {
    if (std::ranges::find(kKinds, fault) == kKinds.end()) return false;
    const int64_t number = int64_t(hashes_.size());
    hashes_.push_back(point);
    if (std::ranges::find(points_, number) == points_.end()) return false;
    ++num_placed_;
    return true;
  }

  const std::vector<uint64_t>& hashes() const { return hashes_; }
  bool all_placed() const { return num_placed_ == points_.size(); }

 private:
  std::vector<int64_t> points_;
  std::vector<uint64_t> hashes_;  // Of every point that was passed.
  size_t num_placed_ = 0;
};

// One prefill and one decode worker, two requests with three tokens each.
Scenario SmallScenario() {
  Scenario s;
  s.prefill_blocks = s.decode_blocks = 32;
  s.prefill_block_size = 2;
  s.decode_block_size = 4;
  s.chunk_tokens = 16;
  return s;
}

class Search {
 public:
  // Empty, or the violation. The points that were passed are in `hashes` afterwards.
  std::string Run(const std::vector<int64_t>& points, std::vector<uint64_t>* hashes, bool trace) {
    Placement placement(points);
    Cluster cluster(1, SmallScenario());
    if (trace) cluster.TurnTraceOn();
    cluster.world().plan = &placement;
    cluster.StartAll();
    cluster.RunUntil(Time(milliseconds(30)));
    for (int32_t i = 0; i < 2; ++i) {
      ValidRequest request;
      request.prompts = {{7, 8, 9 + i}};
      request.sampling.max_tokens = 3;
      request.sampling.ignore_eos = true;
      request.timeout = seconds(600);
      cluster.clients().Submit(0, request);
    }
    ++num_runs;
    if (Drive(cluster, placement, points.size() == 2 && !trace)) {
      cluster.RunToQuiet();
      if (cluster.clients().num_failed > cluster.clients().num_cancelled) {
        ++num_failed;
        if (first_failed.empty()) first_failed = points;
      }
    }
    num_events += cluster.world().num_events();
    if (hashes != nullptr) *hashes = placement.hashes();
    if (trace) return cluster.Report() + cluster.violation();
    return cluster.violation();
  }

  int64_t num_runs = 0;
  int64_t num_pruned_runs = 0;
  int64_t num_events = 0;
  int64_t num_failed = 0;  // Runs in which a request failed that nobody cancelled.
  std::vector<int64_t> first_failed;

 private:
  // Until everything is quiet; false when it is known how this state goes on.
  bool Drive(Cluster& cluster, Placement& placement, bool prune) {
    const Time limit = cluster.world().now() + seconds(75);
    int64_t marks = 0;
    while (cluster.RunOne(limit)) {
      if (cluster.world().num_marks() == marks) continue;
      marks = cluster.world().num_marks();
      if (prune && placement.all_placed()) {
        if (!visited_.insert(cluster.world().StateHash()).second) {
          ++num_pruned_runs;
          return false;
        }
        if (cluster.clients().num_live() == 0) return true;
        continue;
      }
      if (cluster.clients().num_live() == 0 && cluster.IsQuiet()) return true;
      Offer(cluster);
    }
    return true;
  }

  void Offer(Cluster& cluster) {
    World& world = cluster.world();
    const auto crash = [&](Fault fault, int worker) {
      if (!cluster.worker(worker).up() || !world.Hit(fault)) return;
      world.Note(static_cast<uint64_t>(fault));
      cluster.CrashWorker(worker, milliseconds(50));
    };
    crash(Fault::kCrashPrefill, 0);
    crash(Fault::kCrashDecode, 1);
    for (uint64_t key = 1; key <= 2; ++key) {
      const Fault fault = key == 1 ? Fault::kCancelFirst : Fault::kCancelSecond;
      if (cluster.clients().ended(key) != nullptr || !world.Hit(fault)) continue;
      world.Note(static_cast<uint64_t>(fault));
      cluster.clients().Cancel(key);
    }
  }

  absl::flat_hash_set<uint64_t> visited_;  // States without a fault left.
};

std::string Name(const std::vector<int64_t>& points) {
  std::string name = "faults at points";
  for (int64_t point : points) name += " " + std::to_string(point);
  return name;
}

TEST(ExhaustiveTest, TwoFaultsAnywhereKeepTheInvariants) {
  const bool nightly = std::getenv("BATON_NIGHTLY") != nullptr;
  // Without it: each second first fault of the two.
  const char* given = std::getenv("BATON_SIM_STRIDE");
  const int64_t stride = given != nullptr ? std::atoll(given) : nightly ? 1 : 8;
  Search search;
  std::vector<uint64_t> base;
  ASSERT_EQ(search.Run({}, &base, false), "");
  ASSERT_EQ(search.num_failed, 0);
  absl::flat_hash_set<uint64_t> placed;  // Points with one fault placed before.
  int64_t num_pairs = 0, num_pruned_pairs = 0;
  for (int64_t first = 0; first < int64_t(base.size()); ++first) {
    std::vector<uint64_t> points;
    ASSERT_EQ(search.Run({first}, &points, false), "") << search.Run({first}, nullptr, true) << "\n"
                                                       << Name({first});
    if (first % stride != 0) continue;
    for (int64_t second = first + 1; second < int64_t(points.size()); ++second) {
      ++num_pairs;
      if (!placed.insert(points[second]).second) {
        ++num_pruned_pairs;
        continue;
      }
      ASSERT_EQ(search.Run({first, second}, nullptr, false), "")
          << search.Run({first, second}, nullptr, true) << "\n"
          << Name({first, second});
    }
  }
  std::printf(
      "%ld points in the fault-free run; %ld pairs, %ld pruned before the run; %ld runs, %ld "
      "pruned "
      "at a known state, %ld events; %ld runs with a failed request%s\n",
      long(base.size()), long(num_pairs), long(num_pruned_pairs), long(search.num_runs),
      long(search.num_pruned_runs), long(search.num_events), long(search.num_failed),
      stride > 1 ? " (a part of the first faults; all with BATON_NIGHTLY=1)" : "");
  EXPECT_EQ(search.num_failed, 0) << Name(search.first_failed) << "\n"
                                  << search.Run(search.first_failed, nullptr, true);
}

}  // namespace
}  // namespace baton::sim
