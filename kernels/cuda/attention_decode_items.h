#pragma once

// What the warps of decode attention of sm_90a work on: partials of 512 keys of a KV head.

#include "kernels/cuda/attention_softmax.h"

namespace baton::cuda::attention::decode {

constexpr int kRows = 16;

// One partial of a KV head. Its place counts steps, of all KV heads of all sequences in turn.
struct Item {
  BlockWork work;  // With no keys but those of the partial. Behind the last item s is below 0.
  int first;       // The partials that the sequence has; none if last < first.
  int last;
  int partial;
  int64_t begin;
  int64_t end;
  bool has_other_rows;  // Than the item before.
};

BATON_DEVICE int FirstStep(const BlockWork& work) {
  return work.keys.begin / kStepKeys * kStepKeys;
}

// Steps of one KV head: one at least if it has rows, so that somebody writes their zeros.
BATON_DEVICE int64_t StepsOf(const Problem& args, int64_t s) {
  if (s >= args.num_seqs) return 0;
  const BlockWork work = WorkOfRows(args, s, 0, 0, kRows);
  if (work.num_rows == 0) return 0;
  return max(1, (work.keys.end - 1) / kStepKeys + 1 - work.keys.begin / kStepKeys);
}

// A warp's way through the items of its block: of all steps it has an equal share, and the items
// that begin in it. Each lane has one of 32 sequences.
class Items {
 public:
  BATON_DEVICE explicit Items(const Problem& args) : args_(args) {
    Load(0, 0);
    while (first_ + 32 < args.num_seqs) Load(first_ + 32, Sum());
    const int64_t steps = Sum();
    next_ = steps * blockIdx.x / gridDim.x;
    end_ = steps * (blockIdx.x + 1) / gridDim.x;
    if (first_ > 0) Load(0, 0);
  }

  BATON_DEVICE Item Next() {
    Item item;
    while (next_ < end_) {
      item = At(next_);
      const bool begins = item.begin == next_;  // Else it is that of the block before.
      next_ = item.end;
      if (begins) return item;
    }
    item.work.s = -1;
    return item;
  }

 private:
  // Sequences from `first` on, behind so many steps.
  BATON_DEVICE void Load(int64_t first, int64_t before) {
    const int lane = threadIdx.x % 32;
    first_ = first;
    steps_ = StepsOf(args_, first + lane);
    sum_ = steps_ * args_.k_cache.num_heads;
    BATON_UNROLL
    for (int by = 1; by < 32; by *= 2) {
      const int64_t other = __shfl_up_sync(~0u, sum_, by);
      if (lane >= by) sum_ += other;
    }
    sum_ += before;
  }
  BATON_DEVICE int64_t Sum() const { return __shfl_sync(~0u, sum_, 31); }

  BATON_DEVICE Item At(int64_t place) {
    while (Sum() <= place) Load(first_ + 32, Sum());
    const int lane = __ffs(static_cast<int>(__ballot_sync(~0u, sum_ > place))) - 1;
    const int64_t steps = __shfl_sync(~0u, steps_, lane);
    const int64_t before = __shfl_sync(~0u, sum_, lane) - steps * args_.k_cache.num_heads;
    const auto kv_head = static_cast<int>((place - before) / steps);
    const auto step = static_cast<int>((place - before) % steps);
    Item item;
    item.work = WorkOfRows(args_, first_ + lane, kv_head, 0, kRows);
    KeyRange& keys = item.work.keys;
    item.first = keys.begin / kPartialKeys;
    item.last = keys.begin < keys.end ? (keys.end - 1) / kPartialKeys : item.first - 1;
    constexpr int kSteps = kPartialKeys / kStepKeys;
    const int first_step = keys.begin / kStepKeys, at = first_step + step;
    item.partial = at / kSteps;
    item.begin = place - (at - max(first_step, item.partial * kSteps));
    item.end = place + min(static_cast<int>(steps) - step, kSteps - at % kSteps);
    const int first_key = item.partial * kPartialKeys;
    keys.begin = max(keys.begin, first_key);
    if (keys.end - first_key > kPartialKeys) keys.end = first_key + kPartialKeys;
    return item;
  }

  const Problem& args_;
  int64_t first_;
  int64_t steps_;  // Of one KV head of the lane's sequence.
  int64_t sum_;    // Of all sequences up to it.
  int64_t next_;
  int64_t end_;
};

}  // namespace baton::cuda::attention::decode
