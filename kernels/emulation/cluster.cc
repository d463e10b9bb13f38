#include "kernels/emulation/cluster.h"

#include <cstring>
#include <string>

#include "kernels/emulation/block_runner.h"

namespace baton::emulation {

void ClusterBarrier::Reset() {
  phase_ = 0;
  arrived_ = 0;
  told_.clear();
  known_.clear();
  waiting_.clear();
}

void ClusterBarrier::Arrive(const Site& site) {
  BlockRunner& runner = TheRunner();
  Thread& thread = *runner.current();
  if (runner.NumExited() > 0) {
    Fail("cluster barrier divergence: " + thread.Name() + " arrives at " + Show(site) + " but " +
         std::to_string(runner.NumExited()) + " threads of its cluster have exited");
  }
  if (thread.has_arrived) {
    Fail(thread.Name() + " arrives at a cluster barrier at " + Show(site) +
         " before it has waited at the last one");
  }
  if (arrived_ == 0) site_ = site;
  thread.has_arrived = true;
  thread.Tell(told_);
  runner.order().Tell(told_);
  runner.Tick(thread);
  if (++arrived_ < runner.NumThreads()) return;
  known_ = told_;
  arrived_ = 0;
  ++phase_;
  for (const int waiting : waiting_) runner.Wake(waiting);
  waiting_.clear();
}

void ClusterBarrier::Wait(const Site& site) {
  BlockRunner& runner = TheRunner();
  Thread& thread = *runner.current();
  if (!thread.has_arrived) {
    Fail(thread.Name() + " waits at a cluster barrier at " + Show(site) +
         " where it has not arrived");
  }
  while (phase_ == thread.cluster_phases) {
    waiting_.push_back(thread.index);
    runner.Park("a cluster barrier", site);
  }
  thread.has_arrived = false;
  ++thread.cluster_phases;
  thread.Learn(known_);
}

void ClusterBarrier::CheckExit(const Thread& thread) const {
  if (thread.has_arrived) Fail(thread.Name() + " exits with a cluster barrier not waited for");
  if (arrived_ == 0) return;
  Fail("cluster barrier divergence: " + thread.Name() +
       " exits while others have arrived at a cluster barrier at " + Show(site_));
}

void StoreRemote(void* place, int block, const void* value, const Site& site) {
  constexpr size_t kBytes = 16;
  BlockRunner& runner = TheRunner();
  Thread& thread = *runner.current();
  const std::string who = thread.Name() + " stores at " + Show(site);
  if (block < 0 || block >= runner.cluster_size()) {
    Fail(who + " to block " + std::to_string(block) + " of a cluster of " +
         std::to_string(runner.cluster_size()));
  }
  Block& target = runner.block(block);
  if (&target != &runner.block(thread.block)) {
    if (thread.cluster_phases == 0) {
      Fail(who + " to block " + std::to_string(block) +
           " of its cluster, of which no cluster barrier says that it has started");
    }
    if (runner.HasEnded(target)) {
      Fail(who + " to block " + std::to_string(block) + " of its cluster, which has ended");
    }
    target.visits[thread.index] = {Stamp::Of(thread.index, thread.clock, false), PlaceOf(site)};
  }
  const auto offset = static_cast<std::byte*>(place) - runner.shared().data();
  std::byte* const to = target.shared->data() + offset;
  target.shared->Check(Access::kWrite, to, kBytes, PlaceOf(site), thread, runner.order());
  std::memcpy(to, value, kBytes);
}

void CheckVisits(const Block& block) {
  BlockRunner& runner = TheRunner();
  for (const auto& [visitor, visit] : block.visits) {
    bool is_known = false;
    for (int i = 0; i < runner.block_threads() && !is_known; ++i) {
      is_known = block.order.IsBefore(visit.stamp, runner.thread(block.first_thread + i));
    }
    if (is_known) continue;
    Fail(runner.thread(visitor).Name() + " stores at " + Show(visit.place) +
         " to a block of its cluster that may have ended: none of its threads waits for that");
  }
}

}  // namespace baton::emulation
