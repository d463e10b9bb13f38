#pragma once

// wgmma as the emulated sm_90a has it. All threads of four warps call each of these.

#include <cstdint>

#include "kernels/emulation/place.h"

namespace baton::emulation {

// wgmma.fence: these sums hold what the next product may add to.
void FenceSums(float* sums, int count, const Site& site);
// sums += a * b^T by wgmma.m64n{columns}k16, of bf16 or else f16; without `adds` they are the
// product alone. a and b are 16 columns of tiles of [64] and [columns] rows of 128 bytes that lie
// as a tensor copy leaves them. It reads them and writes the sums until the thread has waited for
// its group.
void MultiplyAsync(bool is_bf16, int columns, float* sums, bool adds, const void* a, const void* b,
                   const Site& site);
// An operand in registers: of `count` that one fence covers those from `first` on are mma.sync's.
struct HeldOperand {
  const uint32_t* registers;
  int count;
  int first;
};
// wgmma.fence, of which FenceSums follows: these registers hold what the next products read.
void FenceOperands(const uint32_t* operands, int count);
// sums += a * b, of 16 rows of b: tiles of 64 columns, each [64] rows of 128 bytes that lie as a
// tensor copy leaves them. The operand's registers must stay until the thread has waited.
void MultiplyAsync(bool is_bf16, int columns, float* sums, const HeldOperand& a, const void* b,
                   const Site& site);
void CommitProducts(const Site& site);
// Until at most so many of the newest groups are in flight.
void WaitProducts(int pending_groups, const Site& site);
// fence.proxy.async
void FenceProxy();

}  // namespace baton::emulation
