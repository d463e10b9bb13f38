#pragma once

#include <vector>

#include "common/base/thread_pool.h"
#include "kernels/api/attention_args.h"
#include "kernels/cpu/attention_runner.h"
#include "kernels/cpu/generic_attention_runner.h"
#include "kernels/cpu/kernel_set.h"
#include "kernels/cpu/kv_cache_append.h"

namespace baton {

// Whether the fast kernel, which is the engine's, computes this; else the generic one does. A
// matter of layout and options alone, never of lengths, so that a sequence stays with one kernel.
bool FastAttentionServes(const GenericAttentionArgs& args);

// The front ends of attention: each operator becomes one call of one of the two kernels. All on
// checked arguments. Keeps its memory from call to call.
class AttentionDispatch {
 public:
  // Both outlive it.
  AttentionDispatch(const KernelSet* set, ThreadPool* pool);

  void Run(const VarlenAttentionArgs& args);
  void Run(const PagedAttentionArgs& args);
  void Run(const PrefixAttentionArgs& args);
  void Run(const AttentionWithKvCacheArgs& args);

 private:
  void Run(const GenericAttentionArgs& args, AttentionSplit split);

  AttentionRunner fast_;
  GenericAttentionRunner generic_;
  KvCacheAppend append_;
  std::vector<int32_t> cu_seqlens_q_;  // 0, 1, 2 ... for decode.
};

}  // namespace baton
