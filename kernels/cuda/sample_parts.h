#pragma once

// A row of logits divided among blocks, launch after launch: what a launch's blocks find out about
// the row lies in device memory for the next. Sums are integers, so that neither the number of
// parts nor an order of blocks can change a bit.

#include "kernels/cuda/sample_row.h"

namespace baton::cuda::sample {

constexpr int kMaxParts = 32;  // A lane for each.

struct RowRoom {
  // Of each part: the likeliest tokens' places, before and after adjusting; the sum of raw weights.
  Mass best_raw[kMaxParts], best[kMaxParts], raw_sums[kMaxParts];
  Mass bins[kBins];
  // The edge of top_p: the share that is wanted, and what the digits above the edge's have of it.
  Mass wanted, above;
  Mass sums[kMaxChunks];  // Of the weights that are kept whatever the list says.
  // Tokens among which the edge lies, in any order; more than have room are counted.
  Mass listed[kMaxListed];
  int num_listed;
};

// A block's part of a row: chunks [first, end).
struct Part {
  BATON_DEVICE Part(const SampleArgs& args, RowRoom* rooms, int parts)
      : index(blockIdx.x / parts),
        part(static_cast<int>(blockIdx.x) % parts),
        row(args.rows[index]),
        room(rooms[index]),
        raw(args.logits + row.logit_row * args.logits_stride),
        x(IsAdjusted(row) ? args.adjusted + int64_t{index} * args.vocab_size : raw),
        chunks(args.vocab_size),
        first(part * chunks.count / parts),
        end((part + 1) * chunks.count / parts) {}

  // Each chunk by a warp: body(chunk).
  template <typename Body>
  BATON_DEVICE void ForChunks(const Body& body) const {
    chunks.ForChunks(first, end, body);
  }
  template <typename Body>
  BATON_DEVICE void ForEach(const float* logits, const Body& body) const {
    chunks.ForEach(logits, first, end, body);
  }
  BATON_DEVICE bool CutsTopK() const { return row.top_k > 0 && row.top_k < chunks.vocab_size; }
  // Whether draws are from tokens of which some are listed.
  BATON_DEVICE bool Lists() const { return CutsTopK() || row.top_p > 0; }

  int index, part;
  SampleRow row;
  RowRoom& room;
  const float* raw;
  const float* x;  // After bias, mask and penalties.
  Chunks chunks;
  int first, end;
};

// The likeliest tokens of a row, of which `parts` have told theirs.
struct Likely {
  BATON_DEVICE Likely(const Part& part, int parts) : row(part.row) {
    const int lane = threadIdx.x % 32;
    best_raw = IdOf(WarpMax(lane < parts ? part.room.best_raw[lane] : 0));
    best = IdOf(WarpMax(lane < parts ? part.room.best[lane] : 0));
    max_raw = part.raw[best_raw];
    max = part.x[best];
    steep = 2.0f * static_cast<float>(min(row.scale, 1e30));
  }
  // Neither a row nor one that penalties have spoilt.
  BATON_DEVICE bool IsBad() const { return !IsFinite(max_raw) || max != max; }
  BATON_DEVICE bool Draws() const { return row.scale > 0 && IsFinite(max); }
  // 0 for what is out of reach of 2^least_power anyway, which floats tell: they err by less than
  // one power. Halves do not overflow.
  BATON_DEVICE Mass Weight(float logit, float least_power = -46.0f) const {
    if ((logit * 0.5f - max * 0.5f) * steep < least_power) return 0;
    const Mass weight = WeightOf(logit, max, row.scale);
    return weight < row.least_weight ? 0 : weight;
  }

  const SampleRow& row;
  int best_raw, best;
  float max_raw, max;
  float steep;  // Not more than twice the scale.
};

// Of a logit, steps of 1/64 up to that of the likeliest one, in kBins - 1; 0 holds all that are
// far below.
BATON_DEVICE int DigitOfLogit(float x, float max) {
  const float below = (max - x) * 64.0f;
  return below < kBins - 1 ? kBins - 1 - static_cast<int>(below) : 0;
}

// Of a weight, 64 steps for each power of two; 0 is that of no weight alone.
BATON_DEVICE int DigitOfWeight(Mass weight) {
  if (weight == 0) return 0;
  Mass bits = weight | Mass{1075} << 52;
  double x;
  memcpy(&x, &bits, sizeof(x));
  x -= 0x1p52;
  memcpy(&bits, &x, sizeof(bits));
  return static_cast<int>(bits >> 46) - (1023 << 6) + 1;
}
static_assert(44 * 64 + 1 < kBins);

// A token with its weight, of which the greatest is first where more is likelier, and of equals
// the lower id; or where the lower id is first. None of weight 0: 0.
constexpr int kIdBits = 19, kMassBits = 45;
static_assert(kMaxVocabulary == 1 << kIdBits && kIdBits + kMassBits == 64);
BATON_DEVICE Mass ByWeight(Mass weight, int id) {
  return weight == 0 ? 0 : weight << kIdBits | static_cast<Mass>(kMaxVocabulary - 1 - id);
}
BATON_DEVICE Mass ById(Mass weight, int id) {
  return weight == 0 ? 0 : static_cast<Mass>(kMaxVocabulary - 1 - id) << kMassBits | weight;
}
BATON_DEVICE int IdByWeight(Mass entry) {
  return kMaxVocabulary - 1 - static_cast<int>(entry & (kMaxVocabulary - 1));
}

// The value of thread (own number ^ by). Of all threads, or of whole warps where `by` is in a warp.
BATON_DEVICE Mass Exchange(Shared& shared, Mass own, int by) {
  if (by < 32) return __shfl_xor_sync(~0u, own, by);
  __syncthreads();  // The values before these have been read.
  shared.listed[threadIdx.x] = own;
  __syncthreads();
  return shared.listed[threadIdx.x ^ by];
}

// The values of all threads in descending order, of which those from `count` on are 0. Batcher's
// bitonic sort.
BATON_DEVICE Mass SortDown(Shared& shared, Mass own, int count) {
  const int at = threadIdx.x;
  int size = 1;
  while (size < count) size *= 2;
  const bool is_zero = at / 32 * 32 >= size;  // All of the warp.
  for (int run = 2; run <= size; run *= 2) {
    for (int by = run / 2; by > 0; by /= 2) {
      if (is_zero && by < 32) continue;
      const Mass other = Exchange(shared, own, by);
      const bool takes_greater = ((at & by) == 0) == ((at & run) == 0);
      own = takes_greater ? max(own, other) : min(own, other);
    }
  }
  return own;
}

// The sum over the threads up to and with this one, and that of all.
struct Prefix {
  Mass up_to, all;
};
BATON_DEVICE Prefix BlockScan(Shared& shared, Mass own) {
  const Mass up_to = WarpScan(own);
  const Sums sums = SumWarps(shared, __shfl_sync(~0u, up_to, 31));
  return {sums.before + up_to, sums.all};
}

}  // namespace baton::cuda::sample
