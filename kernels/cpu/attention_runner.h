#pragma once

#include <vector>

#include "common/base/thread_pool.h"
#include "kernels/api/attention_args.h"
#include "kernels/cpu/kernel_set.h"

namespace baton {

// Divides attention into tasks for a pool. Keeps its memory from call to call, so that a step of a
// known size allocates nothing. Which tasks there are never changes a bit: a query's partial states
// are the same and are folded in the same order.
class AttentionRunner {
 public:
  // Both outlive it.
  AttentionRunner(const KernelSet* set, ThreadPool* pool);

  // On checked arguments that FastAttentionServes (attention_dispatch.h).
  void Run(VarlenAttentionArgs args, AttentionSplit split);

 private:
  // A vector that lies across two lines takes two loads.
  static constexpr int64_t kLineFloats = 16;
  struct alignas(64) CacheLine {
    float floats[kLineFloats];
  };

  int64_t EnoughTasks() const;  // To keep all threads busy to the end.
  void MakeTasks(const VarlenAttentionArgs& args);
  void SplitTasks(const VarlenAttentionArgs& args);
  void RunTasks(const VarlenAttentionArgs& args);

  const KernelSet* set_;
  ThreadPool* pool_;
  // Of the call in progress.
  std::vector<AttentionTask> tasks_;       // The longest first.
  std::vector<AttentionTask> reductions_;  // What is left to do once the tasks of a split ended.
  std::vector<float> states_;
  int64_t longest_ = 0;                          // Queries of a task.
  double products_ = 0;                          // Of q and k, roughly; may exceed 64 bits.
  std::vector<std::vector<CacheLine>> scratch_;  // [num_threads]
};

}  // namespace baton
