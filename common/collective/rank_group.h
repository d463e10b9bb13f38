#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/collective/patience.h"
#include "kernels/api/device.h"

namespace baton {

// A rank's end of its group; its compute thread's. Ranks make the same calls in the same order.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Where this rank writes what the next Exchange tells the others.
  virtual float* partial() = 0;

  // Returns when all ranks have called: the partial of each, rank 0's first, for what this rank
  // enqueues on kCompute from now on, until its next call of Exchange. An error is the group's: all
  // ranks get it, now or at their next call.
  virtual absl::StatusOr<std::span<const float* const>> Exchange() = 0;

  // Returns when all ranks have called: their words, or-ed.
  virtual absl::StatusOr<uint32_t> Agree(uint32_t word) = 0;

  // Returns when all ranks have called: one graph of what the passes of all have enqueued on
  // kCompute, in which they may Exchange, all alike. Rank 0 has it, the others get null. After an
  // error the group is to fail, lest the others wait for this rank.
  virtual absl::StatusOr<std::unique_ptr<Graph>> Capture(
      absl::FunctionRef<absl::Status()> pass) = 0;

  // Returns when all ranks have called, rank 0 with such a graph and it has launched it: behind
  // all that each has enqueued on kCompute, before all that any enqueues from now on. An error of
  // the launch is one of all ranks.
  virtual absl::Status Launch(const Graph* graph) = 0;

  // Returns when all ranks have called at the end of a step, of which this is what became of it
  // here. OK: at all of them the same, an error of one code or none, or an error of the first rank
  // alone, which is the step's. Otherwise, or when others are still amid the step, no rank knows
  // what they hold: the group ends, with the first such error.
  virtual absl::Status End(const absl::Status& own) = 0;

  // Ends the group: who waits is woken, and every later call has this error. Any thread.
  virtual void Fail(const absl::Status& status) = 0;
};

struct RankGroupOptions {
  int64_t partial_floats = 0;  // Of one partial.
  // How often a rank looks before it sleeps: for nothing where ranks share cores.
  int spins = 0;
  // Asleep, it looks so often at
  Duration slice = std::chrono::milliseconds(100);
  // the clock, and at how long threads of the group have stood in line for a core.
  std::function<Time()> now;
  std::function<QueuedThreads()> queued;
};

// The ranks of one worker: threads of one process, on devices each of which reads the memory of
// all. Every wait for a rank is bounded, in time of the waiter's own running: one that does not
// come ends the group. Devices wait for each other's sums by marks, and for those the ranks wait as
// for all that they have enqueued.
class RankGroup {
 public:
  // A rank on each device, 1 to kMaxRanks, which are peers; they outlive the group.
  static absl::StatusOr<std::unique_ptr<RankGroup>> Create(std::span<Device* const> devices,
                                                           RankGroupOptions options);
  ~RankGroup();

  Communicator& rank(int rank);

  // A step begins, all ranks being idle.
  void OnStart();

  // Waited for others by all ranks together.
  Duration waited() const;

 private:
  class Rank;
  enum class Call : uint8_t { kExchange, kAgree, kCapture, kLaunch, kEnd };

  explicit RankGroup(RankGroupOptions options);
  absl::Status MakeRoom(std::span<Device* const> devices);
  absl::StatusOr<uint64_t> Meet(int rank, Call call, uint64_t word,
                                const absl::Status& own = absl::OkStatus());
  bool HaveEnded() const;
  void Spin(uint64_t round) const;
  absl::StatusOr<uint64_t> AwaitRound(uint64_t round);
  absl::Status NotMet(Duration waited) const;
  void FailLocked(const absl::Status& status);
  void Fail(const absl::Status& status);

  const RankGroupOptions options_;
  std::vector<std::unique_ptr<Rank>> ranks_;

  // How many meetings there were.
  std::atomic<uint64_t> round_{0};
  std::atomic<bool> has_failed_{false};

  mutable std::mutex mutex_;  // Guards all below, and writes of the above.
  std::condition_variable met_;
  absl::Status failed_;
  uint32_t arrived_ = 0;  // A bit of each rank.
  Call call_ = Call::kAgree;  // Of the first that came.
  absl::Status cause_;        // Of this round, the first error that a rank has come with.
  uint64_t words_ = 0;
  uint64_t agreed_ = 0;  // Of the last round.
  Patience patience_;
  Duration waited_{};
};

}  // namespace baton
