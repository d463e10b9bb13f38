#include "kernels/cpu/row_math.h"

#include "kernels/api/sample_args.h"
#include "kernels/cpu/vec.h"

namespace baton::BATON_KERNEL_SET {
namespace {

constexpr int kDoubleLanes = kPartLanes / 2;
constexpr float kInfinity = __builtin_inff();

typedef double DoublePart __attribute__((vector_size(kDoubleLanes * 8)));
typedef int64_t LongPart __attribute__((vector_size(kDoubleLanes * 8)));
typedef uint64_t BitsPart __attribute__((vector_size(kDoubleLanes * 8)));
typedef float FloatPart __attribute__((vector_size(kDoubleLanes * 4)));

// Calls body(i, p) for i = 0, kCount, ...: p holds elements [i, i + kCount), -inf behind the end
// of the row.
template <int64_t kCount, typename Body>
BATON_INLINE void ForFilled(const float* x, int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kCount <= n; i += kCount) body(i, x + i);
  if (i == n) return;
  float rest[kCount];
  for (int64_t j = 0; j < kCount; ++j) rest[j] = i + j < n ? x[i + j] : -kInfinity;
  body(i, rest);
}

BATON_INLINE DoublePart FmaDoubles(DoublePart a, DoublePart b, DoublePart c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif BATON_HARDWARE_FMA
  return _mm256_fmadd_pd(a, b, c);
#else
  for (int i = 0; i < kDoubleLanes; ++i) a[i] = __builtin_fma(a[i], b[i], c[i]);
  return a;
#endif
}

// Parts of one call of WeightParts: enough of them that no step waits for the one before.
constexpr int kWeightParts = kDoubleLanes == 8 ? 8 : 4;
constexpr int64_t kWeightValues = kWeightParts * kDoubleLanes;

#define BATON_EACH_WEIGHT_PART _Pragma("GCC unroll 8") for (int i = 0; i < kWeightParts; ++i)

// 2^f = 1 + f (c0 + f (c1 + ...)) for |f| <= 1/2, within 2^-50: (2^f - 1) / f interpolated at ten
// Chebyshev points.
constexpr double kExp2[] = {0x1.62e42fefa39f7p-1,  0x1.ebfbdff82c590p-3,  0x1.c6b08d7044119p-5,
                            0x1.3b2ab6fba385fp-7,  0x1.5d87fe908f88ap-10, 0x1.4309130378460p-13,
                            0x1.ffcb76789860fp-17, 0x1.62bfe46117445p-20, 0x1.b6571de2f2351p-24,
                            0x1.e5e9f548e5725p-28};

// The weights 2^x, x <= 0 or a NaN. At 2^52 a double's unit is 1: adding rounds, and leaves the
// integer in the low bits.
BATON_INLINE void WeightParts(DoublePart* x, BitsPart* out) {
  constexpr double kNearest = 0x1.8p52;
  constexpr double kLeast = -64;  // Rounds to 0; what is below, and a NaN, counts as this.
  DoublePart shifted[kWeightParts], y[kWeightParts];
  BATON_EACH_WEIGHT_PART x[i] = x[i] > kLeast ? x[i] : DoublePart{} + kLeast;
  BATON_EACH_WEIGHT_PART shifted[i] = x[i] + kNearest;
  BATON_EACH_WEIGHT_PART x[i] = x[i] - (shifted[i] - kNearest);
  BATON_EACH_WEIGHT_PART y[i] = DoublePart{} + kExp2[9];
  _Pragma("GCC unroll 9") for (int c = 8; c >= 0; --c) {
    BATON_EACH_WEIGHT_PART y[i] = FmaDoubles(y[i], x[i], DoublePart{} + kExp2[c]);
  }
  BATON_EACH_WEIGHT_PART y[i] = FmaDoubles(y[i], x[i], DoublePart{} + 1.0);
  BATON_EACH_WEIGHT_PART {
    // The shifted sum's low bits hold the power; the shift leaves only them, as an exponent.
    BitsPart bits;
    std::memcpy(&bits, &shifted[i], sizeof(bits));
    bits = (bits + 1023 + kWeightBits) << 52;
    DoublePart scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    const DoublePart weight = FmaDoubles(y[i], scale, DoublePart{} + 0x1p52);
    std::memcpy(&out[i], &weight, sizeof(weight));
    out[i] &= (uint64_t{1} << 52) - 1;
  }
}

// The greatest of kMaxBlock values that is a number.
BATON_INLINE float MaxOfBlock(const float* x) {
  // A comparison with a NaN keeps what was there.
  Vec max = Broadcast(-kInfinity);
  for (int64_t i = 0; i < RowMath::kMaxBlock; i += kLanes) max = Max(Load(x + i), max);
  return MaxLane(max);
}

bool BlockMax(const float* x, int64_t n, float* out) {
  IntPart nans[kParts] = {};
  ForFilled<RowMath::kMaxBlock>(x, n, [&](int64_t begin, const float* block) {
    out[begin / RowMath::kMaxBlock] = MaxOfBlock(block);
    for (int64_t j = 0; j < RowMath::kMaxBlock; j += kLanes) {
      const Vec v = Load(block + j);
      BATON_EACH_PART nans[i] |= v.p[i] != v.p[i];
    }
  });
  bool is_any = false;
  BATON_EACH_PART {
    for (int lane = 0; lane < kPartLanes; ++lane) is_any |= nans[i][lane] != 0;
  }
  return !is_any;
}

int64_t Rank(const float* x, int64_t n, int64_t index) {
  const float own = x[index];
  int32_t before = 1;
  for (int64_t i = 0; i < index; ++i) before += x[i] >= own;
  for (int64_t i = index + 1; i < n; ++i) before += x[i] > own;
  return before;
}

uint64_t Weights(const float* x, int64_t n, float max, double scale, uint64_t* out) {
  BitsPart sum = {};
  ForFilled<kWeightValues>(x, n, [&](int64_t begin, const float* values) {
    DoublePart parts[kWeightParts];
    BATON_EACH_WEIGHT_PART {
      FloatPart floats;
      std::memcpy(&floats, values + i * kDoubleLanes, sizeof(floats));
      parts[i] = (__builtin_convertvector(floats, DoublePart) - double{max}) * scale;
    }
    BitsPart weights[kWeightParts];
    WeightParts(parts, weights);
    BATON_EACH_WEIGHT_PART sum += weights[i];
    if (out == nullptr) return;
    if (n - begin >= kWeightValues) {
      std::memcpy(out + begin, weights, sizeof(weights));
    } else {
      std::memcpy(out + begin, weights, (n - begin) * sizeof(uint64_t));
    }
  });
  uint64_t all = 0;
  for (int lane = 0; lane < kDoubleLanes; ++lane) all += sum[lane];
  return all;
}

int64_t CountAtLeast(const float* x, int64_t n, float bound) {
  int32_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += x[i] >= bound;
  return count;
}

#if BATON_HARDWARE_FMA && !defined(__AVX512F__)
// For each set of lanes the permutation that brings them to the front.
struct FrontLanes {
  uint8_t of[256][8] = {};
  constexpr FrontLanes() {
    for (int set = 0; set < 256; ++set) {
      for (int lane = 0, count = 0; lane < 8; ++lane) {
        if ((set >> lane & 1) != 0) of[set][count++] = static_cast<uint8_t>(lane);
      }
    }
  }
};
constexpr FrontLanes kFrontLanes;
#endif

// FindAtLeast of x[0 .. 15], the first of which has this index.
BATON_INLINE int64_t FindInVec(const float* x, int32_t index, float bound, int32_t* indexes,
                               float* found) {
  int64_t count = 0;
#if defined(__AVX512F__)
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512 v = _mm512_loadu_ps(x);
  const __mmask16 reaches = _mm512_cmp_ps_mask(v, _mm512_set1_ps(bound), _CMP_GE_OQ);
  const __m512i at = _mm512_add_epi32(lanes, _mm512_set1_epi32(index));
  _mm512_storeu_si512(indexes, _mm512_maskz_compress_epi32(reaches, at));
  _mm512_storeu_ps(found, _mm512_maskz_compress_ps(reaches, v));
  count = __builtin_popcount(reaches);
#elif BATON_HARDWARE_FMA
  for (int i = 0; i < kLanes; i += 8) {
    const __m256 v = _mm256_loadu_ps(x + i);
    const int reaches = _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_set1_ps(bound), _CMP_GE_OQ));
    const __m256i front = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kFrontLanes.of[reaches])));
    const __m256i at = _mm256_add_epi32(front, _mm256_set1_epi32(index + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(indexes + count), at);
    _mm256_storeu_ps(found + count, _mm256_permutevar8x32_ps(v, front));
    count += __builtin_popcount(reaches);
  }
#else
  for (int i = 0; i < kLanes; ++i) {
    indexes[count] = index + i;
    found[count] = x[i];
    count += x[i] >= bound;
  }
#endif
  return count;
}

int64_t FindAtLeast(const float* x, int64_t n, float bound, int32_t* indexes, float* found) {
  int64_t count = 0;
  int64_t i = 0;
  for (; i + RowMath::kMaxBlock <= n; i += RowMath::kMaxBlock) {
    if (MaxOfBlock(x + i) < bound) continue;
    for (int64_t j = i; j < i + RowMath::kMaxBlock; j += kLanes) {
      count += FindInVec(x + j, static_cast<int32_t>(j), bound, indexes + count, found + count);
    }
  }
  for (; i < n; ++i) {
    indexes[count] = static_cast<int32_t>(i);
    found[count] = x[i];
    count += x[i] >= bound;
  }
  return count;
}

// As signed numbers, which all instruction sets compare; bounds beyond them are above all weights.
BATON_INLINE int64_t Bound(uint64_t bound) {
  constexpr uint64_t kMax = ~uint64_t{0} >> 1;
  return static_cast<int64_t>(bound < kMax ? bound : kMax);
}

WeightSum SumAtLeast(const uint64_t* weights, int64_t n, uint64_t bound) {
  BitsPart sum = {};
  LongPart count = {};
  const LongPart least = LongPart{} + Bound(bound);
  int64_t i = 0;
  for (; i + kDoubleLanes <= n; i += kDoubleLanes) {
    LongPart v;
    std::memcpy(&v, weights + i, sizeof(v));
    const LongPart reaches = v >= least;  // -1 in a lane that does.
    count -= reaches;
    sum += reinterpret_cast<BitsPart>(v & reaches);
  }
  WeightSum all;
  for (int lane = 0; lane < kDoubleLanes; ++lane) {
    all.sum += sum[lane];
    all.count += count[lane];
  }
  for (; i < n; ++i) {
    if (weights[i] < bound) continue;
    all.sum += weights[i];
    ++all.count;
  }
  return all;
}

int64_t FindBetween(const uint64_t* weights, int64_t n, uint64_t low, uint64_t high,
                    int32_t* indexes) {
  int64_t count = 0;
  int64_t i = 0;
#if defined(__AVX512VL__)
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m512i least = _mm512_set1_epi64(Bound(low)), end = _mm512_set1_epi64(Bound(high));
  for (; i + 8 <= n; i += 8) {
    const __m512i v = _mm512_loadu_si512(weights + i);
    const __mmask8 found = _mm512_cmpge_epi64_mask(v, least) & _mm512_cmplt_epi64_mask(v, end);
    const __m256i at = _mm256_add_epi32(lanes, _mm256_set1_epi32(static_cast<int32_t>(i)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(indexes + count),
                        _mm256_maskz_compress_epi32(found, at));
    count += __builtin_popcount(found);
  }
#endif
  for (; i < n; ++i) {
    indexes[count] = static_cast<int32_t>(i);
    count += weights[i] >= low && weights[i] < high;
  }
  return count;
}

constexpr RowMath kTable = {
    .block_max = BlockMax,
    .rank = Rank,
    .weights = Weights,
    .count_at_least = CountAtLeast,
    .find_at_least = FindAtLeast,
    .sum_at_least = SumAtLeast,
    .find_between = FindBetween,
};

}  // namespace

const RowMath* RowMathTable() { return &kTable; }

}  // namespace baton::BATON_KERNEL_SET
