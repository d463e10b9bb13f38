#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/kv_cache/kv_layout.h"

namespace baton {

// A block as captured when a transfer was agreed. A write whose epoch is no longer the
// block's is refused and counted.
struct BlockRef {
  BlockId block = -1;
  uint32_t epoch = 0;
  bool operator==(const BlockRef&) const = default;
};

// What a block is used for; tabled in ARCHITECTURE.md.
enum class BlockState : uint8_t { kFree, kReserved, kFilling, kReady, kCached, kDraining };

// Blocks by state; the sum is the pool size at every step (I1).
struct BlockCounts {
  int32_t free = 0;
  int32_t reserved = 0;
  int32_t filling = 0;
  int32_t ready = 0;
  int32_t cached = 0;
  int32_t draining = 0;
  int32_t total() const { return free + reserved + filling + ready + cached + draining; }
  bool operator==(const BlockCounts&) const = default;
};

// The current epoch of every block, readable from the transport's thread. Owned by the
// BlockAllocator; [num_blocks].
using BlockEpochs = std::vector<std::atomic<uint32_t>>;

}  // namespace baton
