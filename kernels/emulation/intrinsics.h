#pragma once

// What a thread of a kernel asks of the emulated device; kernels/emulation/kernel_language.h gives
// it the names of CUDA.

#include <cstddef>
#include <cstdint>

#include "kernels/emulation/place.h"
#include "kernels/emulation/thread.h"

namespace baton::emulation {

const Position& CurrentPosition();
// The block's shared memory, of which the kernel needs so much.
void* SharedMemoryOf(size_t bytes, const Site& site);
void SyncThreads(const Site& site);
void SyncWarp(uint32_t mask, const Site& site);
// Between what the thread knows to be written and an atomic operation, and between such an
// operation of another block and what reads it.
void ThreadFence();

enum class ShuffleKind : uint8_t { kIndex, kUp, kDown, kXor };
uint64_t Shuffle(ShuffleKind kind, uint32_t mask, uint64_t value, int argument, int width,
                 const Site& site);
uint32_t Ballot(uint32_t mask, bool predicate, const Site& site);
// Before an atomic operation on [address, address + size).
void CheckAtomic(void* address, size_t size, const Site& site);

// Row i of matrix j of four is that of lane 8 j + i.
void LoadMatrices(uint32_t (&out)[4], const void* row, bool transposed, const Site& site);
// c += a * b by mma.sync.m16n8k16; 16-bit elements are bf16, or else f16.
void MultiplyAdd(bool is_bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                 const Site& site);

void CopyAsync(void* to, const void* from, bool live, const Site& site);
void CommitCopies();
void WaitCopies(int pending_groups);

}  // namespace baton::emulation
