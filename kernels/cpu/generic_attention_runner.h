#pragma once

#include <vector>

#include "common/base/thread_pool.h"
#include "kernels/cpu/kernel_set.h"

namespace baton {

// Divides generic attention into tasks for a pool: by sequence, KV head and queries; by keys only
// where the caller has memory for partials.
// Keeps its memory from call to call.
class GenericAttentionRunner {
 public:
  // Both outlive it.
  GenericAttentionRunner(const KernelSet* set, ThreadPool* pool);

  // On checked arguments.
  void Run(GenericAttentionArgs args);

 private:
  const KernelSet* set_;
  ThreadPool* pool_;
  std::vector<AttentionTask> tasks_;         // The longest first.
  std::vector<AttentionTask> partitions_;    // Of partials: one for each.
  std::vector<int32_t> seq_lens_;            // Where the caller gave none.
  std::vector<std::vector<float>> scratch_;  // [num_threads]
};

}  // namespace baton
