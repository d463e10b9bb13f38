#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "kernels/emulation/actor_clocks.h"
#include "kernels/emulation/fiber.h"
#include "kernels/emulation/place.h"

namespace baton::emulation {

inline constexpr int kMaxBlockThreads = 1024;
inline constexpr int kMostBlocks = 8;  // Of a cluster, on every GPU that has them.

// Who did something to memory, and when by its own clock: actor 12, atomic 1, clock 19 bits. The
// clock starts at 1, so 0 stands for nobody.
struct Stamp {
  uint32_t bits = 0;

  static constexpr uint32_t kMaxClock = (1 << 19) - 1;
  static Stamp Of(int thread, uint32_t clock, bool atomic) {
    return {static_cast<uint32_t>(thread) << 20 | static_cast<uint32_t>(atomic) << 19 | clock};
  }
  explicit operator bool() const { return bits != 0; }
  int thread() const { return static_cast<int>(bits >> 20); }
  bool atomic() const { return (bits >> 19 & 1) != 0; }
  uint32_t clock() const { return bits & kMaxClock; }
  bool operator==(const Stamp&) const = default;
};

struct AsyncCopy {
  std::byte* to;
  const std::byte* from;
  bool live;  // Else 16 zeros.
  Place place;
};

// Sums of a wgmma in flight: their registers hold NaN until the thread has waited.
struct PendingSums {
  float* registers;
  std::vector<float> values;
  int64_t group;  // The newest that adds to them.
};
// 16-byte chunks of shared memory that a warp's wgmma reads, kept by its first lane.
struct PendingReads {
  std::vector<uint32_t> chunks;
  int64_t group;
};
// Registers that a wgmma in flight reads.
struct PendingOperands {
  const uint32_t* registers;
  std::vector<uint32_t> values;
  int64_t group;
};
// What a wgmma.fence saw in the registers of sums or of an operand; none after a wait for them.
struct FencedRegisters {
  const void* registers;
  std::vector<uint32_t> bits;
};
// What a thread has of wgmma.
struct AsyncProducts {
  int64_t committed = 0;  // Groups.
  std::vector<PendingSums> sums;
  std::vector<PendingOperands> operands;
  std::vector<PendingReads> reads;
  std::vector<FencedRegisters> fenced;
};

struct Coordinates {
  unsigned x, y, z;
};
struct Position {
  Coordinates thread, block, grid_dim, block_dim;
};

// A thread of the block that runs.
struct Thread {
  Fiber fiber;
  int index = 0;  // In its cluster, where each block's begin at a multiple of 128.
  int first = 0;  // The index of the first of its block,
  int block = 0;  // which has this rank there.
  bool done = false;
  const char* waits_in = "";
  Site waits_at;
  uint32_t clock = 1;
  std::array<uint32_t, 32> warp_seen = {};  // Clocks of its warp's lanes that a __syncwarp passed.
  ActorClocks seen;  // Those of actors that mbarriers told it; empty: none has.
  std::vector<AsyncCopy> open_copies;
  std::deque<std::vector<AsyncCopy>> copy_groups;
  AsyncProducts products;
  bool has_arrived = false;      // At a cluster barrier, and not waited there.
  uint32_t cluster_phases = 0;   // Those that it has waited for.
  ActorClocks fenced;            // What its last __threadfence found.
  bool was_atomic = false;       // In global memory.
  Position* position = nullptr;  // On its stack, where kernels may read.

  int lane() const { return index % 32; }
  int warp() const { return index / 32; }
  std::string Name() const {
    const int number = index - first;
    return "thread " + std::to_string(number) + " (warp " + std::to_string(number / 32) + " lane " +
           std::to_string(lane()) + ")" +
           (block == 0 ? "" : " of its cluster's block " + std::to_string(block));
  }
  // Adds what it knows of all actors, itself among them.
  void Tell(ActorClocks& clocks) const {
    clocks.Raise(seen);
    for (int i = 0; i < 32; ++i) {
      if (warp_seen[i] != 0) clocks.Raise(warp() * 32 + i, warp_seen[i]);
    }
    clocks.Raise(index, clock);
  }
  // From now on it passes on what it knows, also if that is of itself alone.
  void Learn(const ActorClocks& clocks) {
    seen.Raise(index, clock);
    seen.Raise(clocks);
  }
};
// Of the cluster that runs, or that ran last.
std::string NameOfThread(int index);

// Happens-before within a block: __syncthreads orders everything, __syncwarp the lanes of a mask,
// an mbarrier who arrives and who waits, a cluster barrier all threads of all its blocks. Shuffles
// and votes order nothing, as on a device.
class BlockOrder {
 public:
  void Reset() {
    passed_.clear();
    fenced_.fill(0);
  }
  // All threads have arrived; the caller then moves their clocks on.
  void PassBarrier(const Thread& thread) {
    passed_.Raise(thread.index, thread.clock);
    passed_.Raise(thread.seen);
  }
  // Adds what every thread of the block knows by __syncthreads.
  void Tell(ActorClocks& clocks) const { clocks.Raise(passed_); }
  // fence.proxy.async: tensor copies and wgmma see what the thread has written so far.
  void FenceProxy(const Thread& thread) { fenced_[thread.index] = thread.clock; }

  // Whether what `stamp` tells of comes before whatever `thread` does now.
  bool IsBefore(Stamp stamp, const Thread& thread) const {
    const int other = stamp.thread();
    if (other == thread.index || stamp.clock() <= passed_[other]) return true;
    if (stamp.clock() <= thread.seen[other]) return true;
    return other / 32 == thread.warp() && stamp.clock() <= thread.warp_seen[other % 32];
  }
  // Whether tensor copies and wgmma see it, once it comes before them.
  bool IsFenced(Stamp stamp) const {
    return stamp.thread() >= kMaxThreads || stamp.clock() <= fenced_[stamp.thread()];
  }

 private:
  ActorClocks passed_;
  std::array<uint32_t, kMaxThreads> fenced_ = {};
};

// Ends the kernel that runs: the first message is kept, the block is given up. Called in a thread
// of it, it does not return.
void Fail(const std::string& message);

}  // namespace baton::emulation
