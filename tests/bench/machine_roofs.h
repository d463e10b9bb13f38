#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "common/base/thread_pool.h"

namespace baton::bench {

// Seconds of a steady clock.
double Now();

// What a machine can do at most, measured by loops that do nothing else.
enum class Instruction { kFmaAvx2, kFmaAvx512, kBf16Dot, kAmxBf16, kVnni };

bool Runs(Instruction instruction);
const char* NameOf(Instruction instruction);

// What a kernel set (by its name, or "auto") multiplies matrices with, in f32 or bf16.
Instruction ProductInstruction(const std::string& kernel_set, bool bf16);

// Measures on the pool's threads, all at once; each call takes some tens of milliseconds.
class MachineRoofs {
 public:
  // Products are compared with what `kernel_set` could reach.
  explicit MachineRoofs(ThreadPool* pool, const std::string& kernel_set = "auto");

  // 10^9 operations per second of registers only; a multiplication and an addition are two.
  double GigaOps(Instruction instruction);

  // 10^9 bytes per second, of a buffer that no cache holds, each thread a part of it.
  double ReadGigabytes();

  // What a matrix product in f32 or bf16 is compared with: the peak of the instruction that the
  // kernel set does it with.
  double ProductGigaOps(bool bf16);

 private:
  ThreadPool* pool_;
  std::string kernel_set_;
  struct Free {
    void operator()(uint64_t* p) const { std::free(p); }
  };
  std::unique_ptr<uint64_t[], Free> buffer_;
  std::vector<uint64_t> sums_;  // [threads]: so that reading is not in vain.
};

}  // namespace baton::bench
