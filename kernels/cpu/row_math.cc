#include "kernels/cpu/row_math.h"

#include "kernels/cpu/vec.h"

namespace baton::BATON_KERNEL_SET {
namespace {

constexpr int kDoubleLanes = kPartLanes / 2;
constexpr int kDoubleParts = kLanes / kDoubleLanes;
constexpr float kInfinity = __builtin_inff();

typedef double DoublePart __attribute__((vector_size(kDoubleLanes * 8)));
typedef int64_t LongPart __attribute__((vector_size(kDoubleLanes * 8)));
typedef uint64_t BitsPart __attribute__((vector_size(kDoubleLanes * 8)));
typedef float FloatPart __attribute__((vector_size(kDoubleLanes * 4)));

// 16 doubles, whatever the machine's registers hold.
struct DoubleVec {
  DoublePart p[kDoubleParts];
};

#define BATON_EACH_DOUBLE_PART _Pragma("GCC unroll 8") for (int i = 0; i < kDoubleParts; ++i)

BATON_INLINE DoubleVec ZeroDoubles() {
  DoubleVec v;
  BATON_EACH_DOUBLE_PART v.p[i] = DoublePart{};
  return v;
}

BATON_INLINE DoubleVec LoadDoubles(const double* from) {
  DoubleVec v;
  BATON_EACH_DOUBLE_PART std::memcpy(&v.p[i], from + i * kDoubleLanes, sizeof(DoublePart));
  return v;
}

// Calls body(i, p) for i = 0, kCount, ...: p holds elements [i, i + kCount), `filler` behind the
// end of the row.
template <int64_t kCount, typename T, typename Body>
BATON_INLINE void ForFilled(const T* x, int64_t n, T filler, Body body) {
  int64_t i = 0;
  for (; i + kCount <= n; i += kCount) body(i, x + i);
  if (i == n) return;
  T rest[kCount];
  for (int64_t j = 0; j < kCount; ++j) rest[j] = i + j < n ? x[i + j] : filler;
  body(i, rest);
}

// Lane i + lane i + 8, then + 4, + 2, + 1: the one order.
double SumDoubles(const DoubleVec& v) {
  double lanes[kLanes];
  std::memcpy(lanes, &v, sizeof(lanes));
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// Of |x| < 2^51.
BATON_INLINE DoublePart Floor(const DoublePart& x) {
#if defined(__AVX512F__)
  return _mm512_floor_pd(x);
#elif defined(__AVX2__)
  return _mm256_floor_pd(x);
#else
  const DoublePart nearest = (x + 0x1.8p52) - 0x1.8p52;
  return nearest > x ? nearest - 1.0 : nearest;
#endif
}

// Parts of one call of ExpParts: enough of them that no step waits for the one before.
constexpr int kExpParts = kDoubleLanes == 8 ? 8 : 4;
constexpr int64_t kExpValues = kExpParts * kDoubleLanes;
static_assert(kExpValues % kLanes == 0 || kLanes % kExpValues == 0);

#define BATON_EACH_EXP_PART _Pragma("GCC unroll 8") for (int i = 0; i < kExpParts; ++i)

// PortableExp, operation by operation, for x <= 0 or a NaN.
BATON_INLINE void ExpParts(DoublePart* x) {
  DoublePart n[kExpParts], r[kExpParts], y[kExpParts];
  BATON_EACH_EXP_PART n[i] = Floor(x[i] * 1.44269504088896338700 + 0.5);
  BATON_EACH_EXP_PART r[i] = x[i] - n[i] * 6.93147180369123816490e-01;
  BATON_EACH_EXP_PART r[i] = r[i] - n[i] * 1.90821492927058770002e-10;
  constexpr double kInverse[] = {1.0 / 13, 1.0 / 12, 1.0 / 11, 1.0 / 10, 1.0 / 9, 1.0 / 8,
                                 1.0 / 7,  1.0 / 6,  1.0 / 5,  1.0 / 4,  1.0 / 3, 1.0 / 2};
  BATON_EACH_EXP_PART y[i] = DoublePart{} + 1.0;
  _Pragma("GCC unroll 12") for (const double inverse : kInverse) {
    BATON_EACH_EXP_PART y[i] = y[i] * r[i];
    BATON_EACH_EXP_PART y[i] = y[i] * inverse;
    BATON_EACH_EXP_PART y[i] = 1.0 + y[i];
  }
  BATON_EACH_EXP_PART y[i] = 1.0 + y[i] * r[i];
  BATON_EACH_EXP_PART {
    // The sum's low bits hold n; the shift leaves only them, as an exponent.
    const DoublePart shifted = n[i] + 0x1.8p52;
    BitsPart bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + 1023) << 52;
    DoublePart scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    x[i] = x[i] < -708.0 ? DoublePart{} : y[i] * scale;
  }
}

// Calls body(i, parts) for each kExpParts parts of a row of floats, -inf behind its end.
template <typename Body>
BATON_INLINE void ForExpParts(const float* x, int64_t n, Body body) {
  // Whole vectors of 16, also where a call of ExpParts takes less.
  constexpr int64_t kStep = kExpValues < kLanes ? kLanes : kExpValues;
  ForFilled<kStep>(x, n, -kInfinity, [&](int64_t begin, const float* values) {
    for (int64_t at = 0; at < kStep; at += kExpValues) {
      DoublePart parts[kExpParts];
      BATON_EACH_EXP_PART {
        FloatPart floats;
        std::memcpy(&floats, values + at + i * kDoubleLanes, sizeof(floats));
        parts[i] = __builtin_convertvector(floats, DoublePart);
      }
      body(begin + at, parts);
    }
  });
}

void BlockMax(const float* x, int64_t n, float* out) {
  ForFilled<RowMath::kMaxBlock>(x, n, -kInfinity, [&](int64_t i, const float* block) {
    // A comparison with a NaN keeps what was there.
    Vec max = Broadcast(-kInfinity);
    for (int64_t j = 0; j < RowMath::kMaxBlock; j += kLanes) max = Max(Load(block + j), max);
    out[i / RowMath::kMaxBlock] = MaxLane(max);
  });
}

int64_t Rank(const float* x, int64_t n, int64_t index) {
  const float own = x[index];
  int32_t before = 1;
  for (int64_t i = 0; i < index; ++i) before += x[i] >= own;
  for (int64_t i = index + 1; i < n; ++i) before += x[i] > own;
  return before;
}

double SumExp(const float* x, int64_t n, float max) {
  DoubleVec sum = ZeroDoubles();
  ForExpParts(x, n, [&](int64_t begin, DoublePart* parts) {
    BATON_EACH_EXP_PART parts[i] -= double{max};
    ExpParts(parts);
    // The vector's part of the first; a constant where a call takes whole vectors.
    const int first =
        kExpParts < kDoubleParts ? static_cast<int>(begin / kDoubleLanes) % kDoubleParts : 0;
    BATON_EACH_EXP_PART sum.p[(first + i) % kDoubleParts] += parts[i];
  });
  return SumDoubles(sum);
}

void ExpWeights(const float* x, int64_t n, float max, double temperature, double* out) {
  ForExpParts(x, n, [&](int64_t begin, DoublePart* parts) {
    BATON_EACH_EXP_PART parts[i] = (parts[i] - double{max}) / temperature;
    // Only a number equals itself.
    BATON_EACH_EXP_PART parts[i] = parts[i] == parts[i] ? parts[i] : DoublePart{} - kInfinity;
    ExpParts(parts);
    const int64_t count = n - begin < kExpValues ? n - begin : kExpValues;
    if (count == kExpValues) {
      std::memcpy(out + begin, parts, kExpValues * sizeof(double));
    } else if (count > 0) {
      std::memcpy(out + begin, parts, count * sizeof(double));
    }
  });
}

WeightSum SumAtLeast(const double* weights, int64_t n, double bound) {
  DoubleVec sum = ZeroDoubles();
  LongPart counts[kDoubleParts] = {};
  ForFilled<kLanes>(weights, n, -1.0, [&](int64_t, const double* lanes) {
    const DoubleVec v = LoadDoubles(lanes);
    BATON_EACH_DOUBLE_PART {
      const LongPart reaches = v.p[i] >= bound;  // -1 in a lane that does.
      counts[i] -= reaches;
      sum.p[i] += reaches ? v.p[i] : DoublePart{};
    }
  });
  WeightSum all{.sum = SumDoubles(sum)};
  for (const LongPart& part : counts) {
    for (int lane = 0; lane < kDoubleLanes; ++lane) all.count += part[lane];
  }
  return all;
}

void BlockSums(const double* weights, int64_t n, double bound, double* out) {
  for (int64_t begin = 0; begin < n; begin += RowMath::kSumBlock) {
    const int64_t count = n - begin < RowMath::kSumBlock ? n - begin : RowMath::kSumBlock;
    out[begin / RowMath::kSumBlock] = SumAtLeast(weights + begin, count, bound).sum;
  }
}

void FindBetween(const double* weights, int64_t n, double low, double high, int32_t* out) {
  ForFilled<kLanes>(weights, n, -1.0, [&](int64_t begin, const double* lanes) {
    const DoubleVec v = LoadDoubles(lanes);
    LongPart any = {};
    BATON_EACH_DOUBLE_PART any |= (v.p[i] >= low) & (v.p[i] < high);
    int64_t found = 0;
    for (int lane = 0; lane < kDoubleLanes; ++lane) found |= any[lane];
    if (found == 0) return;
    for (int64_t i = 0; i < kLanes; ++i) {
      if (lanes[i] >= low && lanes[i] < high) *out++ = static_cast<int32_t>(begin + i);
    }
  });
}

constexpr RowMath kTable = {
    .block_max = BlockMax,
    .rank = Rank,
    .sum_exp = SumExp,
    .exp_weights = ExpWeights,
    .sum_at_least = SumAtLeast,
    .block_sums = BlockSums,
    .find_between = FindBetween,
};

}  // namespace

const RowMath* RowMathTable() { return &kTable; }

}  // namespace baton::BATON_KERNEL_SET
