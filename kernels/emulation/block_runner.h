#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/random.h"
#include "kernels/emulation/cluster.h"
#include "kernels/emulation/emulator.h"
#include "kernels/emulation/global_memory.h"
#include "kernels/emulation/mbarriers.h"
#include "kernels/emulation/shared_memory.h"
#include "kernels/emulation/thread.h"

namespace baton::emulation {

// Lanes of a warp that meet at one instruction. Each brings its argument.
struct Meeting {
  const char* what = "";
  Site site;
  uint32_t mask = 0;
  uint32_t arrived = 0;
  void* arguments[32] = {};

  template <typename T>
  T& Of(int lane) const {
    return *static_cast<T*>(arguments[lane]);
  }
};

// As Meeting, of the four warps of a warpgroup.
struct WarpgroupMeeting {
  const char* what = "";
  Site site;
  int arrived = 0;
  void* arguments[128] = {};
};

// Runs kernels: one block, or cluster of blocks, after the other, in seeded random order, its
// threads as fibers that switch only where they wait, again in random order.
class BlockRunner {
 public:
  BlockRunner(SharedMemory* shared, GlobalMemory* global) : shared_(shared), global_(global) {}

  struct Launch {
    std::string name;
    dim3 grid, block;
    size_t shared_bytes = 0;
    const KernelCall* call = nullptr;
    int device = 0;
    int cluster = 1;  // Blocks of a cluster, neighbours in x.
  };
  // Empty, or what went wrong.
  std::string Run(const Launch& launch);

  void set_seed(uint64_t seed) { random_ = Random(seed); }
  // Off: accesses are not looked at, which finds little and costs little.
  static void set_detects(bool detects) { detects_ = detects; }
  Statistics& statistics() { return statistics_; }

  // Null outside kernels: also in other threads of the process, while one runs a kernel.
  static Thread* current() { return current_; }
  // Whether the accesses of this thread are looked at.
  static bool watches() { return detects_ && current_ != nullptr; }
  Thread& thread(int index) { return *threads_[index]; }
  // That of the current thread; by its rank; and what all have.
  Block& block() const { return *blocks_[current_->block]; }
  Block& block(int rank) const { return *blocks_[rank]; }
  int cluster_size() const { return launch_->cluster; }
  int block_threads() const { return num_threads_; }
  int NumThreads() const { return num_threads_ * launch_->cluster; }
  int NumExited() const;
  bool HasEnded(const Block& block) const { return block.num_exited == num_threads_; }
  ClusterBarrier& cluster_barrier() { return cluster_barrier_; }
  // Of the current thread's block.
  const BlockOrder& order() const { return block().order; }
  SharedMemory& shared() const { return *block().shared; }
  GlobalMemory& global() { return *global_; }
  Mbarriers& mbarriers();  // Not inlined into kernels, whose every access is looked at.
  RunningBlock& running() { return running_; }

  // What threads call.
  void OnAccess(Access access, const void* address, size_t size, Place place);
  void SyncThreads(const Site& site);
  // Waits for all lanes of `mask`, each of which must come to the same site with the same mask;
  // the last one does the work for all.
  void Meet(const char* what, uint32_t mask, void* argument, const Site& site,
            absl::FunctionRef<void(const Meeting&)> work);
  // The same of all threads of a warpgroup.
  void MeetWarpgroup(const char* what, void* argument, const Site& site,
                     absl::FunctionRef<void(const WarpgroupMeeting&)> work);
  // Until another thread wakes it.
  void Park(const char* what, const Site& site);
  void Wake(int thread) { ready_.push_back(thread); }
  void FenceProxy() {
    block().order.FenceProxy(*current_);
    Tick(*current_);
  }
  // Of all blocks' memory: __threadfence.
  void ThreadFence();
  void Tick(Thread& thread);
  [[noreturn]] void FailInThread(const std::string& message);

 private:
  static void ThreadMain();
  void RunCluster(uint32_t first_block);
  void StartBlock(uint32_t index, int rank);
  void StartThreads(const Block& block, int rank);
  SharedMemory* SharedOf(int rank);
  // At an atomic operation: what the thread's last fence found is the other blocks' to receive.
  void Release(Thread& thread);
  void CheckExit(const Thread& thread);
  void CheckProducts(const Thread& thread);
  void SwitchToNext();
  void SwitchTo(Fiber& fiber, Thread* thread);
  std::string DescribeDeadlock() const;

  SharedMemory* shared_;  // Of the first block of a cluster.
  std::vector<std::unique_ptr<SharedMemory>> others_;
  GlobalMemory* global_;
  Random random_{1};
  Statistics statistics_;
  RunningBlock running_;
  const Launch* launch_ = nullptr;
  std::vector<std::unique_ptr<Block>> blocks_;  // As many as the largest cluster had.
  ClusterBarrier cluster_barrier_;
  std::string message_;
  std::vector<std::unique_ptr<Thread>> threads_;
  int num_threads_ = 0;  // Of a block.
  Fiber host_;
  static inline thread_local Thread* current_ = nullptr;
  std::vector<int> ready_;
  std::vector<std::vector<Meeting>> meetings_;  // Per warp.
  std::vector<WarpgroupMeeting> warpgroup_meetings_;
  std::vector<uint32_t> exited_lanes_;          // Per warp; lanes that do not exist count.
  int64_t accesses_since_switch_ = 0;
  static inline bool detects_ = true;
};

// The device's; kernels have no way to be told of it.
BlockRunner& TheRunner();

}  // namespace baton::emulation
