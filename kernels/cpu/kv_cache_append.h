#pragma once

#include <cstdint>
#include <vector>

#include "kernels/api/attention_args.h"
#include "kernels/cpu/kernel_set.h"

namespace baton {

// Rows that sequence s has in the cache.
int32_t CacheSeqlen(const AttentionWithKvCacheArgs& args, int64_t s);

// The slot of row `row` of sequence s: block * block_size + offset. The row has a place in the
// cache; the entry of the block table may be anything, and then so is the slot.
int64_t SlotOf(const AttentionWithKvCacheArgs& args, int64_t s, int64_t row);

// What AttentionWithKvCache does before the attention: rotates q and the new K, and writes the new
// K and V into the cache. Keeps its memory from call to call.
class KvCacheAppend {
 public:
  // Outlived by `set`.
  explicit KvCacheAppend(const KernelSet* set) : set_(set) {}

  // On checked arguments. Returns the attention that is left to do; valid until the next call.
  GenericAttentionArgs Run(const AttentionWithKvCacheArgs& args);

 private:
  void Append(const AttentionWithKvCacheArgs& args);
  ConstFloats RotatedQueries(const AttentionWithKvCacheArgs& args);

  const KernelSet* set_;
  std::vector<float> q_;               // Rotated.
  std::vector<float> k_;               // New and rotated.
  std::vector<int64_t> slots_;         // [S * num_new]
  std::vector<int32_t> cu_seqlens_q_;  // [S + 1]
  std::vector<int32_t> seq_lens_;      // [S]
  std::vector<int32_t> batch_blocks_;  // [S]: the block table of a contiguous cache.
};

}  // namespace baton
