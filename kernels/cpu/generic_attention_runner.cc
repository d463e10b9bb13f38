#include "kernels/cpu/generic_attention_runner.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/tasks.h"

namespace baton {
namespace {

// Query rows (tokens x heads of a group) of one task: enough to share the staging of keys.
constexpr int64_t kGenericTaskRows = 32;

AttentionTask MakeTask(const GenericAttentionArgs& args, int64_t sequence, int64_t q_begin,
                       int64_t q_end) {
  const ScoreOptions& scores = args.base.scores;
  const int64_t keys = args.base.seq_lens[sequence];
  const int64_t position = keys - args.base.cu_seqlens_q[sequence + 1] + q_begin;
  const int64_t begin = VisibleKeys(scores, position, keys).begin;
  const int64_t end = VisibleKeys(scores, position + q_end - q_begin - 1, keys).end;
  AttentionTask task{.sequence = sequence, .q_begin = q_begin, .q_end = q_end};
  task.partial_begin = begin / kPartialKeys;
  task.partial_end = end <= begin ? task.partial_begin : (end + kPartialKeys - 1) / kPartialKeys;
  return task;
}

// Every partition of the task's sequence, also what no head sees: the caller reads them.
void SetPartitions(const GenericAttentionArgs& args, AttentionTask& task) {
  task.partial_begin = 0;
  task.partial_end = CeilDiv(args.base.seq_lens[task.sequence], kPartialKeys);
}

}  // namespace

GenericAttentionRunner::GenericAttentionRunner(const KernelSet* set, ThreadPool* pool)
    : set_(set), pool_(pool), scratch_(pool->num_threads()) {}

void GenericAttentionRunner::Run(GenericAttentionArgs args) {
  VarlenAttentionArgs& base = args.base;
  if (base.num_seqs == 0) return;
  const AttentionShape one = args.shape(1);
  if (base.scores.scale == 0) base.scores.scale = 1.0f / std::sqrt(static_cast<float>(one.k_dim));
  if (base.seq_lens == nullptr) {
    seq_lens_.resize(base.num_seqs);
    const int32_t* cu = base.dense.cu_seqlens_k;
    for (int64_t s = 0; s < base.num_seqs; ++s) seq_lens_[s] = cu[s + 1] - cu[s];
    base.seq_lens = seq_lens_.data();
  }
  const int64_t tile = std::max<int64_t>(1, kGenericTaskRows / one.group);
  int64_t longest = 0;
  double products = 0;  // Of q and k, roughly; may exceed 64 bits.
  tasks_.clear();
  for (int64_t s = 0; s < base.num_seqs; ++s) {
    const int64_t end = base.cu_seqlens_q[s + 1];
    if (args.skip_decodes && end - base.cu_seqlens_q[s] == 1) continue;
    products += static_cast<double>(end - base.cu_seqlens_q[s]) * base.seq_lens[s] *
                base.num_heads * one.k_dim;
    for (int64_t at = base.cu_seqlens_q[s]; at < end; at += tile) {
      const int64_t task_end = std::min(end, at + tile);
      longest = std::max(longest, task_end - at);
      AttentionTask task = MakeTask(args, s, at, task_end);
      if (args.partials.given()) SetPartitions(args, task);
      for (task.kv_head = 0; task.kv_head < args.heads().num_kv_heads; ++task.kv_head) {
        tasks_.push_back(task);
      }
    }
  }
  if (tasks_.empty()) return;
  std::reverse(tasks_.begin(), tasks_.end());
  const size_t floats = set_->generic_attention_scratch(args.shape(longest));
  for (std::vector<float>& scratch : scratch_) {
    if (scratch.size() < floats) scratch.resize(floats);
  }
  const auto run_all = [&](const std::vector<AttentionTask>& tasks, const auto& kernel) {
    const auto run = [&](int64_t i, int thread) {
      kernel(args, tasks[i], scratch_[thread].data());
    };
    const int64_t num_tasks = std::ssize(tasks);
    if (products >= kInlineProducts) return pool_->ParallelFor(num_tasks, run);
    for (int64_t i = 0; i < num_tasks; ++i) run(i, 0);
  };
  if (!args.partials.given()) return run_all(tasks_, set_->generic_attention);
  partitions_.clear();
  for (AttentionTask task : tasks_) {
    const int64_t end = task.partial_end;
    for (int64_t i = 0; i < end; ++i) {
      task.partial_begin = i;
      task.partial_end = i + 1;
      partitions_.push_back(task);
    }
  }
  run_all(partitions_, set_->generic_attention);
  run_all(tasks_, set_->reduce_generic_attention);
}

}  // namespace baton
