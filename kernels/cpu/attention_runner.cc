#include "kernels/cpu/attention_runner.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/tasks.h"
#include "kernels/cpu/visible_keys.h"

namespace baton {
namespace {

// Query rows (tokens x heads of a group) of one task: so many share the staging of keys, and what
// a task keeps still fits the second cache. Half of it where tasks are scarce.
constexpr int64_t kTaskRows = 192;
// Tasks per thread that keep the threads busy to the end.
constexpr int64_t kTasksPerThread = 4;

int64_t GroupOf(const VarlenAttentionArgs& args) { return args.num_heads / args.k_cache.num_heads; }

AttentionShape ShapeOf(const VarlenAttentionArgs& args, int64_t num_queries) {
  return {num_queries, GroupOf(args), args.k_cache.dim, args.v_cache.dim};
}

// The partial states that some query of a task looks at.
void SetPartials(const VarlenAttentionArgs& args, AttentionTask& task) {
  const int64_t keys = args.seq_lens[task.sequence];
  const int64_t position = keys - args.cu_seqlens_q[task.sequence + 1] + task.q_begin;
  const int64_t last = position + task.q_end - task.q_begin - 1;
  const int64_t begin = VisibleKeys(args.scores, position, keys).begin;
  const int64_t end = VisibleKeys(args.scores, last, keys).end;
  task.partial_begin = begin / kPartialKeys;
  task.partial_end = end <= begin ? task.partial_begin : (end + kPartialKeys - 1) / kPartialKeys;
}

}  // namespace

AttentionRunner::AttentionRunner(const KernelSet* set, ThreadPool* pool)
    : set_(set), pool_(pool), scratch_(pool->num_threads()) {}

int64_t AttentionRunner::EnoughTasks() const {
  return pool_->num_threads() == 1 ? 0 : pool_->num_threads() * kTasksPerThread;
}

void AttentionRunner::MakeTasks(const VarlenAttentionArgs& args) {
  const int64_t num_queries = args.cu_seqlens_q[args.num_seqs] - args.cu_seqlens_q[0];
  const bool many = num_queries * args.num_heads >= kTaskRows * EnoughTasks();
  const int64_t rows = many ? kTaskRows : kTaskRows / 2;
  const int64_t tile = std::max<int64_t>(1, rows / GroupOf(args));
  tasks_.clear();
  products_ = 0;
  longest_ = 0;
  for (int64_t s = 0; s < args.num_seqs; ++s) {
    const int64_t end = args.cu_seqlens_q[s + 1];
    products_ +=
        (end - args.cu_seqlens_q[s]) * args.seq_lens[s] * args.num_heads * args.k_cache.dim;
    for (int64_t at = args.cu_seqlens_q[s]; at < end; at += tile) {
      const int64_t task_end = std::min(end, at + tile);
      longest_ = std::max(longest_, task_end - at);
      for (int64_t h = 0; h < args.k_cache.num_heads; ++h) {
        tasks_.push_back({.sequence = s, .kv_head = h, .q_begin = at, .q_end = task_end});
        SetPartials(args, tasks_.back());
      }
    }
  }
  // Later queries see more keys: the longest tasks start first.
  std::reverse(tasks_.begin(), tasks_.end());
}

// Gives each partial state a task of its own.
void AttentionRunner::SplitTasks(const VarlenAttentionArgs& args) {
  reductions_.swap(tasks_);
  tasks_.clear();
  int64_t floats = 0;
  const auto state_floats = [&](const AttentionTask& task) {
    return ShapeOf(args, task.q_end - task.q_begin).StateFloats();
  };
  for (const AttentionTask& task : reductions_) {
    floats += (task.partial_end - task.partial_begin) * state_floats(task);
  }
  if (states_.size() < static_cast<size_t>(floats)) states_.resize(floats);
  float* states = states_.data();
  for (AttentionTask& whole : reductions_) {
    whole.states = states;
    for (int64_t i = whole.partial_begin; i < whole.partial_end; ++i) {
      AttentionTask part = whole;
      part.partial_begin = i;
      part.partial_end = i + 1;
      part.states = states;
      states += state_floats(whole);
      tasks_.push_back(part);
    }
  }
}

void AttentionRunner::RunTasks(const VarlenAttentionArgs& args) {
  const int64_t floats = set_->attention_scratch(ShapeOf(args, longest_));
  const size_t lines = (floats + kLineFloats - 1) / kLineFloats;
  for (std::vector<CacheLine>& scratch : scratch_) {
    if (scratch.size() < lines) scratch.resize(lines);
  }
  const auto run_all = [&](const std::vector<AttentionTask>& tasks, const auto& kernel) {
    const auto run = [&](int64_t i, int thread) {
      kernel(args, tasks[i], scratch_[thread].data()->floats);
    };
    const auto num_tasks = static_cast<int64_t>(tasks.size());
    if (products_ >= kInlineProducts) return pool_->ParallelFor(num_tasks, run);
    for (int64_t i = 0; i < num_tasks; ++i) run(i, 0);
  };
  run_all(tasks_, set_->attention);
  run_all(reductions_, set_->reduce_attention);
}

void AttentionRunner::Run(VarlenAttentionArgs args, AttentionSplit split) {
  if (args.num_seqs == 0) return;
  if (args.scores.scale == 0) {
    args.scores.scale = 1.0f / std::sqrt(static_cast<float>(args.k_cache.dim));
  }
  MakeTasks(args);
  reductions_.clear();
  const bool scarce = products_ >= kInlineProducts && std::ssize(tasks_) < EnoughTasks();
  if (split == AttentionSplit::kSplit || (split == AttentionSplit::kAuto && scarce)) {
    SplitTasks(args);
  }
  RunTasks(args);
}

}  // namespace baton
