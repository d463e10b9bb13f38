#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "kernels/emulation/fiber.h"
#include "kernels/emulation/place.h"

namespace baton::emulation {

inline constexpr int kMaxThreads = 1024;

// Who did something to memory, and when by its own clock: thread 10, atomic 1, clock 21 bits. The
// clock starts at 1, so 0 stands for nobody.
struct Stamp {
  uint32_t bits = 0;

  static constexpr uint32_t kMaxClock = (1 << 21) - 1;
  static Stamp Of(int thread, uint32_t clock, bool atomic) {
    return {static_cast<uint32_t>(thread) << 22 | static_cast<uint32_t>(atomic) << 21 | clock};
  }
  explicit operator bool() const { return bits != 0; }
  int thread() const { return static_cast<int>(bits >> 22); }
  bool atomic() const { return (bits >> 21 & 1) != 0; }
  uint32_t clock() const { return bits & kMaxClock; }
  bool operator==(const Stamp&) const = default;
};

struct AsyncCopy {
  std::byte* to;
  const std::byte* from;
  bool live;  // Else 16 zeros.
  Place place;
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
  int index = 0;
  bool done = false;
  const char* waits_in = "";
  Site waits_at;
  uint32_t clock = 1;
  std::array<uint32_t, 32> warp_seen = {};  // Clocks of its warp's lanes that a __syncwarp passed.
  std::vector<AsyncCopy> open_copies;
  std::deque<std::vector<AsyncCopy>> copy_groups;
  Position* position = nullptr;  // On its stack, where kernels may read.

  int lane() const { return index % 32; }
  int warp() const { return index / 32; }
  std::string Name() const {
    return "thread " + std::to_string(index) + " (warp " + std::to_string(warp()) + " lane " +
           std::to_string(lane()) + ")";
  }
};
inline std::string NameOfThread(int index) {
  Thread thread;
  thread.index = index;
  return thread.Name();
}

// Happens-before within a block: __syncthreads orders everything, __syncwarp the lanes of a mask.
// Shuffles and votes order nothing, as on a device.
class BlockOrder {
 public:
  void Reset() { passed_.fill(0); }
  // All threads have arrived; the caller then moves their clocks on.
  void PassBarrier(int thread, uint32_t clock) { passed_[thread] = clock; }

  // Whether what `stamp` tells of comes before whatever `thread` does now.
  bool IsBefore(Stamp stamp, const Thread& thread) const {
    const int other = stamp.thread();
    if (other == thread.index || stamp.clock() <= passed_[other]) return true;
    return other / 32 == thread.warp() && stamp.clock() <= thread.warp_seen[other % 32];
  }

 private:
  std::array<uint32_t, kMaxThreads> passed_ = {};
};

// Ends the kernel that runs: the first message is kept, the block is given up. Called in a thread
// of it, it does not return.
void Fail(const std::string& message);

}  // namespace baton::emulation
