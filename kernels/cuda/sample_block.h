#pragma once

// What the threads of a block find out together about one row of logits. Everything is integers:
// no order of threads or warps can change a bit. Ids are divided among warps in contiguous chunks,
// so that a warp reads neighbours and an order by id is an order of warps.
//
// Functions are called by all threads of a block, and all get the same answer.

#include <cstdint>

#include "kernels/cuda/dialect.h"
#include "kernels/cuda/floats.h"
#include "kernels/cuda/operands.h"

namespace baton::cuda::sample {

using Mass = unsigned long long;  // As atomicAdd wants it.

constexpr int kMaxThreads = 1024;
constexpr int kDigitBits = 12;
constexpr int kBins = 1 << kDigitBits;
constexpr int kMaxChunks = kMaxThreads;  // A thread for each, here and below.
constexpr int kMaxListed = kMaxThreads;
constexpr int kChunkUnit = 128;  // Four ids for each lane of a warp.

// Sums of masses by digit. In halves: in shared memory an atomic on 64 bits is a loop of attempts,
// which the threads of a crowded bin would lose over and over.
struct Bins {
  uint32_t low[kBins], high[kBins];

  BATON_DEVICE void Set(int bin, Mass mass) {
    low[bin] = static_cast<uint32_t>(mass);
    high[bin] = static_cast<uint32_t>(mass >> 32);
  }
  BATON_DEVICE Mass Get(int bin) const { return Mass{high[bin]} << 32 | low[bin]; }
  // These by many threads at once. Counts, which stay below 2^32:
  BATON_DEVICE void Count(int bin) { atomicAdd(&low[bin], 1); }
  // Whoever's sum wraps carries.
  BATON_DEVICE void Add(int bin, Mass mass) {
    const auto by = static_cast<uint32_t>(mass);
    const uint32_t carry = atomicAdd(&low[bin], by) > ~by ? 1 : 0;
    const uint32_t above = static_cast<uint32_t>(mass >> 32) + carry;
    if (above != 0) atomicAdd(&high[bin], above);
  }
};

struct Shared {
  Bins bins;
  Mass warps[kMaxThreads / 32];
  Mass listed[kMaxListed];
  int num_listed, first_listed;
  // What one thread has found for all.
  Mass above;
  int digit;
  int id;
};

// Contiguous ids of a row, a warp's work; all rows of a vocabulary have the same.
struct Chunks {
  BATON_DEVICE explicit Chunks(int vocab)
      : vocab_size(vocab),
        size((vocab + kMaxChunks * kChunkUnit - 1) / (kMaxChunks * kChunkUnit) * kChunkUnit),
        count((vocab + size - 1) / size) {}
  // body(id, its logit) for a chunk's ids by the threads of a warp.
  template <typename Body>
  BATON_DEVICE void ForChunk(const float* x, int chunk, const Body& body) const {
    const int end = min(vocab_size, (chunk + 1) * size);
    const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
    for (int id = chunk * size + threadIdx.x % 32 * 4; id < end; id += kChunkUnit) {
      float four[4];
      LoadFour(x + id, end - id, aligned && id + 4 <= end, four);
      BATON_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (id + i < end) body(id + i, four[i]);
      }
    }
  }

  // body(chunk) for those of [first, end) by a warp each.
  template <typename Body>
  BATON_DEVICE void ForChunks(int first, int end, const Body& body) const {
    for (int chunk = first + threadIdx.x / 32; chunk < end; chunk += blockDim.x / 32) body(chunk);
  }
  template <typename Body>
  BATON_DEVICE void ForEach(const float* x, int first, int end, const Body& body) const {
    ForChunks(first, end, [&](int chunk) { ForChunk(x, chunk, body); });
  }
  template <typename Body>
  BATON_DEVICE void ForEach(const float* x, const Body& body) const {
    ForEach(x, 0, count, body);
  }

  int vocab_size, size, count;
};

// The ids of one thread: begin + lane, and every 32nd after it up to the end of its warp's chunk.
class Ids {
 public:
  // Of a block that has [first, end).
  BATON_DEVICE Ids(int first, int end) : first_(first), last_(end) {
    const int num_warps = blockDim.x / 32, warp = threadIdx.x / 32;
    const int chunk = (end - first + num_warps - 1) / num_warps;
    begin_ = min(end, first + warp * chunk);
    end_ = min(end, begin_ + chunk);
  }
  template <typename Body>
  BATON_DEVICE void ForEach(const Body& body) const {
    for (int id = begin_ + static_cast<int>(threadIdx.x % 32); id < end_; id += 32) body(id);
  }
  BATON_DEVICE bool Has(int id) const { return id >= first_ && id < last_; }
  // Of the warp.
  BATON_DEVICE int begin() const { return begin_; }
  BATON_DEVICE int end() const { return end_; }

 private:
  int first_, last_;
  int begin_, end_;
};

BATON_DEVICE Mass WarpSum(Mass x) {
  BATON_UNROLL
  for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(~0u, x, by);
  return x;
}

// The sum over the lanes up to and with this one.
BATON_DEVICE Mass WarpScan(Mass x) {
  BATON_UNROLL
  for (int by = 1; by < 32; by *= 2) {
    const Mass below = __shfl_up_sync(~0u, x, by);
    if (static_cast<int>(threadIdx.x % 32) >= by) x += below;
  }
  return x;
}

BATON_DEVICE Mass WarpMax(Mass x) {
  BATON_UNROLL
  for (int by = 16; by > 0; by /= 2) x = max(x, __shfl_xor_sync(~0u, x, by));
  return x;
}

// A value of each warp, in the lane of that number; 0 in those behind.
BATON_DEVICE Mass OfWarps(Shared& shared, Mass of_warp) {
  const unsigned lane = threadIdx.x % 32;
  __syncthreads();  // The values before these have been read.
  if (lane == 0) shared.warps[threadIdx.x / 32] = of_warp;
  __syncthreads();
  return lane < blockDim.x / 32 ? shared.warps[lane] : 0;
}

struct Sums {
  Mass before = 0;  // Over the warps before this one.
  Mass all = 0;
};
BATON_DEVICE Sums SumWarps(Shared& shared, Mass of_warp) {
  const Mass value = OfWarps(shared, of_warp), up_to = WarpScan(value);
  const int own = threadIdx.x / 32;
  return {__shfl_sync(~0u, up_to - value, own), __shfl_sync(~0u, up_to, 31)};
}

BATON_DEVICE Mass BlockSum(Shared& shared, Mass x) { return SumWarps(shared, WarpSum(x)).all; }

BATON_DEVICE Mass BlockMax(Shared& shared, Mass x) { return WarpMax(OfWarps(shared, WarpMax(x))); }

// The lowest id at which the sum of mass_of(id) over the ids up to and with it exceeds
// target_of(sum over all ids), which must be less than that sum.
template <typename TargetOf, typename MassOf>
BATON_DEVICE int FindId(Shared& shared, const Ids& ids, const TargetOf& target_of,
                        const MassOf& mass_of) {
  Mass own = 0;
  ids.ForEach([&](int id) { own += mass_of(id); });
  own = WarpSum(own);
  const Sums sums = SumWarps(shared, own);
  const Mass target = target_of(sums.all);
  if (target - sums.before < own) {  // In this warp's chunk; below it the difference wraps.
    const int lane = threadIdx.x % 32;
    Mass sum = sums.before;
    for (int first = ids.begin(); first < ids.end(); first += 32) {
      const Mass up_to = sum + WarpScan(first + lane < ids.end() ? mass_of(first + lane) : 0);
      const uint32_t reached = __ballot_sync(~0u, up_to > target);
      if (reached != 0) {
        if (lane == 0) shared.id = first + __ffs(reached) - 1;
        break;
      }
      sum = __shfl_sync(~0u, up_to, 31);
    }
  }
  __syncthreads();
  return shared.id;
}

// A set of ids: those with a greater key, and those with this key up to an id.
struct Cut {
  Mass key = 0;
  int last = INT32_MAX;

  BATON_DEVICE bool Keeps(Mass of_id, int id) const {
    return of_id > key || (of_id == key && id <= last);
  }
};

// The bin that reaches `wanted` together with those of the greater digits, whose sum `above` grows
// by. What no other bin reaches bin 0 does, which need not be filled.
BATON_DEVICE int FindDigit(Shared& shared, Mass wanted, Mass& above) {
  const int per_thread = kBins / blockDim.x;
  const int first = kBins - 1 - static_cast<int>(threadIdx.x) * per_thread;
  Mass own = 0;
  for (int i = 0; i < per_thread; ++i) own += shared.bins.Get(first - i);
  const Mass up_to = WarpScan(own);
  const Sums sums = SumWarps(shared, __shfl_sync(~0u, up_to, 31));
  const Mass missing = wanted - above;
  if (sums.all < missing) {
    above += sums.all;
    return 0;
  }
  Mass sum = sums.before + up_to - own;
  if (sum < missing && missing - sum <= own) {
    int digit = first;
    for (; sum + shared.bins.Get(digit) < missing; --digit) sum += shared.bins.Get(digit);
    shared.digit = digit;
    shared.above = above + sum;
  }
  __syncthreads();
  above = shared.above;
  return shared.digit;
}

// The smallest set of ids with the greatest keys, below 2^kBits, of equal keys with the lowest ids,
// whose masses sum up to `wanted`: not 0 and not more than there is. Equal keys have equal masses.
template <int kBits, typename KeyOf, typename MassOf>
BATON_DEVICE Cut Select(Shared& shared, const Ids& ids, Mass wanted, const KeyOf& key_of,
                        const MassOf& mass_of) {
  static_assert(kBits % kDigitBits == 0);
  Mass key = 0, above = 0;  // The digits found so far, and the mass of greater ones.
  for (int shift = kBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) shared.bins.Set(bin, 0);
    __syncthreads();
    ids.ForEach([&](int id) {
      const Mass of_id = key_of(id);
      const auto digit = static_cast<int>(of_id >> shift & (kBins - 1));
      // Most ids of a long tail share bin 0, where they would wait for each other.
      if (digit == 0 || of_id >> shift >> kDigitBits != key) return;
      shared.bins.Add(digit, mass_of(of_id));
    });
    __syncthreads();
    key = key << kDigitBits | FindDigit(shared, wanted, above);
  }
  const Mass each = mass_of(key), count = (wanted - above + each - 1) / each;
  const int last = FindId(
      shared, ids, [&](Mass) { return count - 1; },
      [&](int id) { return Mass{key_of(id) == key}; });
  return {key, last};
}

}  // namespace baton::cuda::sample
