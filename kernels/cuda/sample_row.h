#pragma once

// What one block does with one row of logits: kernels/cuda/sample.cu with a whole row,
// sample_parts.cu with a part of it or with what the parts have found.

#include "kernels/api/sample_args.h"
#include "kernels/cuda/sample_block.h"

namespace baton::cuda::sample {

constexpr int kWeightBits = 48;  // Of 45, in whole digits.
constexpr int kKeyBits = 36;     // Of 32.

BATON_DEVICE bool IsFinite(float x) { return fabsf(x) < INFINITY; }

// In the order of the numbers; both zeros are one, and a NaN is above all.
BATON_DEVICE uint32_t KeyOf(float x) {
  if (x != x) return ~0u;
  const uint32_t bits = x == 0 ? 0 : ToBits(x);
  return bits >> 31 != 0 ? ~bits : bits | 1u << 31;
}

// In the order in which tokens are likely: of equal logits the lower id comes first.
BATON_DEVICE Mass PlaceOf(float x, int id) {
  return Mass{KeyOf(x)} << 32 | ~static_cast<uint32_t>(id);
}
BATON_DEVICE int IdOf(Mass place) { return static_cast<int>(~static_cast<uint32_t>(place)); }

// The weight 2^((x - max) scale) in units of 2^-44, operation by operation that of
// kernels/cpu/row_math.cc.
BATON_DEVICE Mass WeightOf(float x, float max, double scale) {
  constexpr double kExp2[] = {0x1.62e42fefa39f7p-1,  0x1.ebfbdff82c590p-3,  0x1.c6b08d7044119p-5,
                              0x1.3b2ab6fba385fp-7,  0x1.5d87fe908f88ap-10, 0x1.4309130378460p-13,
                              0x1.ffcb76789860fp-17, 0x1.62bfe46117445p-20, 0x1.b6571de2f2351p-24,
                              0x1.e5e9f548e5725p-28};
  constexpr double kNearest = 0x1.8p52;  // What is added to it is rounded to an integer.
  double power = (double{x} - double{max}) * scale;
  power = power > -64.0 ? power : -64.0;
  const double shifted = power + kNearest;
  const double rest = power - (shifted - kNearest);
  double y = kExp2[9];
  BATON_UNROLL
  for (int c = 8; c >= 0; --c) y = fma(y, rest, kExp2[c]);
  y = fma(y, rest, 1.0);
  Mass bits;
  memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits + 1023 + 44) << 52;  // 2^(the integer + 44)
  double unit;
  memcpy(&unit, &bits, sizeof(unit));
  const double weight = fma(y, unit, 0x1p52);
  memcpy(&bits, &weight, sizeof(bits));
  return bits & ((Mass{1} << 52) - 1);
}

BATON_DEVICE int Likeliest(Shared& shared, const Chunks& chunks, const float* x) {
  Mass best = 0;
  chunks.ForEach(x, [&](int id, float logit) { best = max(best, PlaceOf(logit, id)); });
  return IdOf(BlockMax(shared, best));
}

// At temperature 1.
BATON_DEVICE Mass RawWeightOf(float x, float max) {
  return WeightOf(x, max, 1.44269504088896338700);
}

// The place of the likeliest token of a chunk below `last`, for the lanes of a warp.
BATON_DEVICE Mass BestOfChunk(const Chunks& chunks, const float* x, int chunk, Mass last) {
  Mass best = 0;
  chunks.ForChunk(x, chunk, [&](int id, float logit) {
    const Mass place = PlaceOf(logit, id);
    if (place < last) best = max(best, place);
  });
  return WarpMax(best);
}

// The likeliest tokens of row `row`, one after the other: the chunk of the last one is looked at
// again.
BATON_DEVICE void WriteTop(Shared& shared, const Chunks& chunks, const float* x, int count,
                           const TopTokens& top, int64_t row) {
  const auto keep_best = [&](int chunk, Mass last) {
    const Mass best = BestOfChunk(chunks, x, chunk, last);
    if (threadIdx.x % 32 == 0) shared.listed[chunk] = best;
  };
  if (count > 0) chunks.ForChunks(0, chunks.count, [&](int chunk) { keep_best(chunk, ~Mass{0}); });
  for (int i = 0; i < count; ++i) {
    __syncthreads();
    Mass best = 0;
    for (int chunk = threadIdx.x; chunk < chunks.count; chunk += blockDim.x) {
      best = max(best, shared.listed[chunk]);
    }
    best = BlockMax(shared, best);
    if (threadIdx.x / 32 == 0) keep_best(IdOf(best) / chunks.size, best);
    if (threadIdx.x != 0) continue;
    top.tokens[row * top.stride + i] = IdOf(best);
    top.logits[row * top.stride + i] = x[IdOf(best)];
  }
}

BATON_DEVICE int TokenOf(int token) { return token; }
BATON_DEVICE int TokenOf(const LogitBias& bias) { return bias.token; }

// Threads take the entries of a list in turns: body(entry), of the block's own tokens alone.
template <typename T, typename Body>
BATON_DEVICE void ForList(const Ids& ids, const T* list, int first, int count, const Body& body) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const T entry = list[first + i];
    if (ids.Has(TokenOf(entry))) body(entry);
  }
}

BATON_DEVICE bool HasRepetition(const SampleRow& row) { return row.repetition != 1; }
BATON_DEVICE bool HasCounts(const SampleRow& row) {
  return row.frequency != 0 || row.presence != 0;
}

// body(token, how often it was counted) for each token that is counted, by one thread; then no
// token is.
template <typename Body>
BATON_DEVICE void TakeCounts(const SampleArgs& args, const Ids& ids, int* counts, int first,
                             int count, const Body& body) {
  ForList(ids, args.history, first, count, [&](int token) {
    const int times = atomicExch(&counts[token], 0);
    if (times > 0) body(token, times);
  });
}

BATON_DEVICE void Penalize(const SampleArgs& args, const SampleRow& row, const Ids& ids, float* x,
                           int* counts) {
  const auto add = [&](int token) { atomicAdd(&counts[token], 1); };
  if (HasRepetition(row)) {
    ForList(ids, args.history, row.first_prompt, row.num_prompt, add);
    ForList(ids, args.history, row.first_emitted, row.num_emitted, add);
    __syncthreads();
    const auto penalize = [&](int token, int) {
      x[token] = x[token] > 0 ? x[token] / row.repetition : x[token] * row.repetition;
    };
    TakeCounts(args, ids, counts, row.first_prompt, row.num_prompt, penalize);
    TakeCounts(args, ids, counts, row.first_emitted, row.num_emitted, penalize);
    __syncthreads();
  }
  if (HasCounts(row)) {
    ForList(ids, args.history, row.first_emitted, row.num_emitted, add);
    __syncthreads();
    TakeCounts(args, ids, counts, row.first_emitted, row.num_emitted, [&](int token, int times) {
      x[token] -= row.frequency * static_cast<float>(times);
      x[token] -= row.presence;
    });
    __syncthreads();
  }
}

BATON_DEVICE bool IsAdjusted(const SampleRow& row) {
  return row.num_bias > 0 || row.num_mask > 0 || HasRepetition(row) || HasCounts(row);
}

// The logits of `ids` after bias, mask and penalties, in the memory of row `index` of the call.
BATON_DEVICE const float* Adjust(const SampleArgs& args, const SampleRow& row, const Ids& ids,
                                 const float* raw, int64_t index) {
  const int64_t at = index * args.vocab_size;
  float* x = args.adjusted + at;
  ids.ForEach([&](int id) { x[id] = raw[id]; });
  __syncthreads();
  ForList(ids, args.biases, row.first_bias, row.num_bias,
          [&](const LogitBias& bias) { x[bias.token] += bias.bias; });
  __syncthreads();
  ForList(ids, args.masks, row.first_mask, row.num_mask, [&](int token) {
    atomicExch(&x[token], -INFINITY);  // It may be in the list twice.
  });
  __syncthreads();
  Penalize(args, row, ids, x, args.counts + at);
  return x;
}

// The least number of weights' units that is at least a share of `sum`; not 0, as neither is.
BATON_DEVICE Mass ShareOf(Mass sum, Mass share) {
  const Mass low = share * sum, rounded = low + ((Mass{1} << 63) - 1);
  const Mass high = __umul64hi(share, sum) + (rounded < low ? 1 : 0);
  return high << 1 | rounded >> 63;
}

BATON_DEVICE int Draw(Shared& shared, const Ids& ids, const float* x, float max, int vocab_size,
                      const SampleRow& row) {
  Cut top_k;
  if (row.top_k > 0 && row.top_k < vocab_size) {
    top_k = Select<kKeyBits>(
        shared, ids, row.top_k, [&](int id) { return Mass{KeyOf(x[id])}; },
        [](Mass) { return Mass{1}; });
  }
  // What is left out has no weight.
  const auto likely = [&](int id) -> Mass {
    if (!top_k.Keeps(KeyOf(x[id]), id)) return 0;
    const Mass weight = WeightOf(x[id], max, row.scale);
    return weight < row.least_weight ? 0 : weight;
  };
  Cut top_p;
  if (row.top_p > 0) {
    Mass sum = 0;
    ids.ForEach([&](int id) { sum += likely(id); });
    const Mass wanted = ShareOf(BlockSum(shared, sum), row.top_p);
    top_p = Select<kWeightBits>(shared, ids, wanted, likely, [](Mass weight) { return weight; });
  }
  return FindId(
      shared, ids, [&](Mass sum) { return __umul64hi(row.key, sum); },
      [&](int id) -> Mass {
        const Mass weight = likely(id);
        return top_p.Keeps(weight, id) ? weight : 0;
      });
}

}  // namespace baton::cuda::sample
