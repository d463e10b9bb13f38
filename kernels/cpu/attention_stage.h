#pragma once

// Brings queries, and keys and values from the paged cache, into the order of attention_tile.h.
// Internal linkage, as in vec.h.

#include "kernels/api/cache_args.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/lane_convert.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/visible_keys.h"

namespace baton {
namespace {

// The keys of one KV head of one sequence.
struct HeadKeys {
  const CachePlane* plane = nullptr;
  const int32_t* blocks = nullptr;  // The sequence's row of the block table.
  int64_t head = 0;

  float scale() const {
    const CachePlane& p = *plane;
    return p.num_scales == 0 ? 1.0f : p.scales[p.num_scales == 1 ? 0 : head];
  }

  // Elements from the start of the plane to those of keys [key, key + count); count <= 16.
  void Locate(int64_t key, int64_t count, int64_t (&at)[kLanes]) const {
    const auto size = static_cast<uint32_t>(plane->block_size);
    int64_t block = static_cast<uint32_t>(key) / size;
    int64_t offset = static_cast<uint32_t>(key) % size;
    if (offset + count <= size) {
      const int64_t first =
          blocks[block] * plane->block_stride + (head * size + offset) * plane->dim;
      for (int64_t i = 0; i < count; ++i) at[i] = first + i * plane->dim;
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      at[i] = blocks[block] * plane->block_stride + (head * size + offset) * plane->dim;
      if (++offset == size) {
        offset = 0;
        ++block;
      }
    }
  }

  // Of keys [key, key + 16); of one outside `lanes` those of the nearest one within.
  __attribute__((noinline)) void LocateLanes(int64_t key, const KeySpan& lanes,
                                             int64_t (&at)[kLanes]) const {
    if (lanes.end - lanes.begin == kLanes) return Locate(key, kLanes, at);
    int64_t some[kLanes];
    Locate(key + lanes.begin, lanes.end - lanes.begin, some);
    for (int64_t i = 0; i < kLanes; ++i) {
      const int64_t inside = i < lanes.begin ? lanes.begin : i < lanes.end ? i : lanes.end - 1;
      at[i] = some[inside - lanes.begin];
    }
  }

  // Asks for keys [key, key + 16) below `end`.
  __attribute__((noinline)) void Prefetch(int64_t key, int64_t end) const {
    // GCC takes a function that only prefetches for one without effect and drops its calls.
    __asm__ volatile("");
    const int64_t count = end - key < kLanes ? end - key : kLanes;
    if (count <= 0) return;
    int64_t at[kLanes];
    Locate(key, count, at);
    const int64_t size = SizeOf(plane->dtype);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t byte = 0; byte < plane->dim * size; byte += 64) {
        __builtin_prefetch(plane->data + at[i] * size + byte, 0, 2);
      }
    }
  }

  // Where the keys from `target` on lie, to be asked for; beyond `end` nothing is wanted: those
  // from `here` on, which cost nothing.
  const std::byte* Ahead(int64_t here, int64_t target, int64_t end) const {
    const bool last = target >= end;
    // In small blocks the 16 do not lie in a row.
    if (plane->block_size % kLanes != 0 && !last) Prefetch(target, end);
    int64_t at[kLanes];
    Locate(last ? here : target, 1, at);
    return plane->data + at[0] * SizeOf(plane->dtype);
  }
};

#if defined(__AVX512F__)

// A square of as many rows as a register has lanes: rows become columns.
BATON_INLINE void Transpose(Part (&r)[kPartLanes]) {
  __m512 t[kPartLanes];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  const auto low = [](__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  const auto high = [](__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  // Then r[4 i + c] holds, in quarter l, column 4 l + c of rows 4 i to 4 i + 3.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = low(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = high(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = low(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = high(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88);
    t[4 + c] = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
    t[8 + c] = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
    t[12 + c] = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm512_shuffle_f32x4(t[c], t[8 + c], 0x88);
    r[8 + c] = _mm512_shuffle_f32x4(t[c], t[8 + c], 0xdd);
    r[4 + c] = _mm512_shuffle_f32x4(t[4 + c], t[12 + c], 0x88);
    r[12 + c] = _mm512_shuffle_f32x4(t[4 + c], t[12 + c], 0xdd);
  }
}

#elif BATON_HARDWARE_FMA

// A square of as many rows as a register has lanes: rows become columns.
BATON_INLINE void Transpose(Part (&r)[kPartLanes]) {
  __m256 t[kPartLanes];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  // Then r[4 i + c] holds, in half l, column 4 l + c of rows 4 i to 4 i + 3.
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m256 upper = r[c];
    r[c] = _mm256_permute2f128_ps(upper, r[4 + c], 0x20);
    r[4 + c] = _mm256_permute2f128_ps(upper, r[4 + c], 0x31);
  }
}

#else

// A square of as many rows as a register has lanes: rows become columns.
BATON_INLINE void Transpose(Part (&r)[kPartLanes]) {
  const Part ab_low = __builtin_shuffle(r[0], r[1], IntPart{0, 4, 1, 5});
  const Part ab_high = __builtin_shuffle(r[0], r[1], IntPart{2, 6, 3, 7});
  const Part cd_low = __builtin_shuffle(r[2], r[3], IntPart{0, 4, 1, 5});
  const Part cd_high = __builtin_shuffle(r[2], r[3], IntPart{2, 6, 3, 7});
  r[0] = __builtin_shuffle(ab_low, cd_low, IntPart{0, 1, 4, 5});
  r[1] = __builtin_shuffle(ab_low, cd_low, IntPart{2, 3, 6, 7});
  r[2] = __builtin_shuffle(ab_high, cd_high, IntPart{0, 1, 4, 5});
  r[3] = __builtin_shuffle(ab_high, cd_high, IntPart{2, 3, 6, 7});
}

#endif

// The first `count` bytes, then zeroes.
BATON_INLINE void CopyFirst(const std::byte* from, int64_t count, std::byte (&to)[64]) {
#if defined(__AVX512F__)
  const auto wanted = static_cast<__mmask64>((uint64_t{1} << count) - 1);
  _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(wanted, from));
#else
  std::memset(to, 0, sizeof(to));
  std::memcpy(to, from, count);
#endif
}

// n elements from `at`, the rest zero.
template <DType kType>
BATON_INLINE Vec LoadUpTo(const std::byte* data, int64_t at, int64_t n) {
  if (n >= kLanes) return LoadLanes<kType>(data, at);
  std::byte bytes[64];
  CopyFirst(data + at * SizeOf(kType), n * SizeOf(kType), bytes);
  return LoadLanes<kType>(bytes, 0);
}

// Elements of a key in a dword: a float, or two neighbours of bf16 as they are stored.
template <DType kType>
inline constexpr int64_t kDwordDim = kType == DType::kBF16 ? 2 : 1;
// Elements of a key in a block of columns.
template <DType kType>
inline constexpr int64_t kBlockDim = kLanes* kDwordDim<kType>;

// The first 16 steps of a query of which n elements are left; zero where there are none.
template <AttentionForm kForm>
BATON_INLINE Vec QueryDwords(const float* q, int64_t n) {
  if constexpr (kForm == AttentionForm::kF32) {
    return n >= kLanes ? Load(q) : LoadFirst(q, n);
  } else {
    uint16_t pairs[2 * kLanes] = {};
    for (int64_t i = 0; i < 2 * kLanes && i < n; ++i) pairs[i] = ToBf16(q[i]);
    Vec v;
    std::memcpy(&v, pairs, sizeof(v));
    return v;
  }
}

// Queries in the order of a packed tile. What a step stores beyond its rows the next one
// overwrites.
template <AttentionForm kForm>
void PackTile(const float* const (&queries)[kMaxRows], int64_t rows, int64_t dim, float* out) {
  for (int64_t d = 0; d < dim; d += kLanes * kStep<kForm>) {
    Vec dwords[kMaxRows];
    for (int64_t r = 0; r < kMaxRows; ++r) dwords[r] = QueryDwords<kForm>(queries[r] + d, dim - d);
    Vec steps[kLanes];
#pragma GCC unroll 4
    for (int square = 0; square < kParts; ++square) {
#pragma GCC unroll 4
      for (int part = 0; part * kPartLanes < kMaxRows; ++part) {
        Part columns[kPartLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kPartLanes; ++i) {
          const int r = part * kPartLanes + i;
          columns[i] = dwords[r < kMaxRows ? r : kMaxRows - 1].p[square];
        }
        Transpose(columns);
#pragma GCC unroll 16
        for (int c = 0; c < kPartLanes; ++c) steps[square * kPartLanes + c].p[part] = columns[c];
      }
    }
    const int64_t left = (dim - d + kStep<kForm> - 1) / kStep<kForm>;
    for (int64_t s = 0; s < kLanes && s < left; ++s, out += rows) {
#pragma GCC unroll 4
      for (int part = 0; part * kPartLanes < kMaxRows; ++part) {
        std::memcpy(out + part * kPartLanes, &steps[s].p[part], sizeof(Part));
      }
    }
  }
}

// 16 dwords, of bf16 as they are stored.
template <DType kType>
BATON_INLINE Vec LoadDwords(const std::byte* from) {
  if constexpr (kType != DType::kBF16) return LoadLanes<kType>(from, 0);
  Vec v;
  BATON_EACH_PART std::memcpy(&v.p[i], from + i * sizeof(Part), sizeof(Part));
  return v;
}

// The upper halves of dwords shifted to the left.
BATON_INLINE Part UpperHalves(const Part& dwords, int shift) {
  IntPart bits;
  std::memcpy(&bits, &dwords, sizeof(bits));
  bits = (bits << shift) & static_cast<int32_t>(0xffff0000);
  Part v;
  std::memcpy(&v, &bits, sizeof(v));
  return v;
}

// Turns a block, square by square: row(key, square) is where a key's 16 dwords lie. Calls
// body(step, part, column) for the steps of the products in ascending order, for one part of the
// keys after the other.
template <DType kType, AttentionForm kForm, typename Row, typename Body>
BATON_INLINE void TurnBlock(const Vec& scale, Row row, Body body) {
#pragma GCC unroll 4
  for (int square = 0; square < kParts; ++square) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      Part columns[kPartLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kPartLanes; ++i) {
        const Vec v = LoadDwords<kType>(row(part * kPartLanes + i, square));
        columns[i] = (IsFp8(kType) ? v * scale : v).p[square];
      }
      Transpose(columns);
#pragma GCC unroll 16
      for (int c = 0; c < kPartLanes; ++c) {
        const int64_t dword = square * kPartLanes + c;
        if constexpr (kForm == AttentionForm::kF32 && kType == DType::kBF16) {
          body(2 * dword, part, UpperHalves(columns[c], 16));
          body(2 * dword + 1, part, UpperHalves(columns[c], 0));
        } else {
          body(dword, part, columns[c]);
        }
      }
    }
  }
}

// The same for elements [d, d + kBlockDim) of 16 keys, as far as there are any; meanwhile asks for
// as many bytes from `ahead` on, line by line. Steps are counted from d.
template <DType kType, AttentionForm kForm, typename Body>
BATON_INLINE void ForColumns(const HeadKeys& keys, const int64_t (&at)[kLanes], int64_t d,
                             const std::byte* ahead, Body body) {
  constexpr int64_t kSize = SizeOf(kType);
  const Vec scale = Broadcast(keys.scale());
  const std::byte* data = keys.plane->data + d * kSize;
  const int64_t left = keys.plane->dim - d;
  if (left >= kBlockDim<kType>) {
    const auto row = [&](int key, int square) {
      const std::byte* from = data + at[key] * kSize;
      if (square == 0) {
        __builtin_prefetch(ahead + key * kBlockDim<kType> * kSize, 0, 2);
        // The next block, into the first cache: rows are too short for the hardware's prefetch.
        __builtin_prefetch(from + kBlockDim<kType> * kSize, 0, 3);
      }
      return from;
    };
    return TurnBlock<kType, kForm>(scale, row, body);
  }
  std::byte rows[kLanes][64];
  for (int64_t i = 0; i < kLanes; ++i) {
    __builtin_prefetch(ahead + i * left * kSize, 0, 2);
    CopyFirst(data + at[i] * kSize, left * kSize, rows[i]);
  }
  Part columns[kBlockDim<kType>][kParts];
  TurnBlock<kType, kForm>(
      scale, [&](int key, int) { return rows[key]; },
      [&](int64_t step, int part, const Part& column) { columns[step][part] = column; });
  for (int64_t step = 0; step * kStep<kForm> < left; ++step) {
    BATON_EACH_PART body(step, i, columns[step][i]);
  }
}

// Keys [lanes.begin, lanes.end) of the 16 from `key` on become one panel [steps of dim][16 keys];
// lanes beside them hold others of these keys. Meanwhile asks for as many bytes from `ahead` on.
template <DType kType, AttentionForm kForm>
void StageKeyPanel(const HeadKeys& keys, int64_t key, const KeySpan& lanes, const std::byte* ahead,
                   float* to) {
  int64_t at[kLanes];
  keys.LocateLanes(key, lanes, at);
  for (int64_t d = 0; d < keys.plane->dim; d += kBlockDim<kType>) {
    ForColumns<kType, kForm>(keys, at, d, ahead + d * kLanes * SizeOf(kType),
                             [&](int64_t step, int part, const Part& column) {
                               std::memcpy(to + step * kLanes + part * kPartLanes, &column,
                                           sizeof(column));
                             });
    to += kBlockDim<kType> / kStep<kForm> * kLanes;
  }
}

// Which halves of a pair of keys are in `keys`.
BATON_INLINE uint32_t PairMask(const KeySpan& keys, int64_t pair) {
  const bool low = 2 * pair >= keys.begin;
  const bool high = 2 * pair + 1 < keys.end;
  return (low ? 0x0000ffffu : 0u) | (high ? 0xffff0000u : 0u);
}

inline KeySpan Clip(const KeySpan& span, int64_t begin, int64_t end) {
  KeySpan clipped{span.begin > begin ? span.begin : begin, span.end < end ? span.end : end};
  if (clipped.end < clipped.begin) clipped.end = clipped.begin;
  return clipped;
}

// Where a value panel keeps its keys: [v_padded / 16][steps of keys][16 elements].
struct ValueStage {
  float* data = nullptr;
  int64_t stride = 0;  // Floats from panel to panel.
};

// Keys [key, key + count) of a block, the first of them its key `offset`; elements past dim are
// zero.
template <DType kType>
void StageValues(const HeadKeys& keys, int64_t key, int64_t count, int64_t offset,
                 const ValueStage& to) {
  const int64_t dim = keys.plane->dim;
  const Vec scale = Broadcast(keys.scale());
  for (int64_t first = 0; first < count; first += kLanes) {
    const int64_t some = count - first < kLanes ? count - first : kLanes;
    int64_t at[kLanes];
    keys.Locate(key + first, some, at);
    for (int64_t i = 0; i < some; ++i) {
      float* out = to.data + (offset + first + i) * kLanes;
      for (int64_t d = 0; d < dim; d += kLanes, out += to.stride) {
        const Vec v = LoadUpTo<kType>(keys.plane->data, at[i] + d, dim - d);
        Store(out, IsFp8(kType) ? v * scale : v);
      }
    }
  }
}

#if defined(__AVX512BF16__)

// 16 elements, of which n exist, of two neighbours in pairs; what `mask` does not let through is
// not read and zero.
BATON_INLINE Vec LoadValuePair(const std::byte* data, int64_t low, int64_t high, int64_t n,
                               uint32_t mask) {
  static constexpr auto kOrder = [] {
    struct {
      alignas(64) uint16_t from[32];
    } order{};
    for (uint16_t i = 0; i < 32; ++i) order.from[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
    return order;
  }();
  const auto wanted = static_cast<__mmask16>(n >= kLanes ? 0xffff : (1u << n) - 1);
  const auto load = [&](int64_t at, bool is_seen) {
    const __mmask16 seen = is_seen ? wanted : 0;
    return _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(seen, data + at * 2));
  };
  const __m512i a = load(low, (mask & 0xffffu) != 0);
  const __m512i b = load(high, mask >> 16 != 0);
  Vec v;
  v.p[0] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, _mm512_load_si512(kOrder.from), b));
  return v;
}

// Values in pairs of keys, the first of each pair at an even offset; a partner outside the range
// is zero.
inline void StageValuePairs(const HeadKeys& keys, int64_t key, int64_t count, int64_t offset,
                            const ValueStage& to) {
  const int64_t dim = keys.plane->dim;
  for (int64_t panel = offset / kLanes * kLanes; panel < offset + count; panel += kLanes) {
    const KeySpan lanes = Clip({offset, offset + count}, panel, panel + kLanes);
    const KeySpan inside{lanes.begin - panel, lanes.end - panel};
    int64_t at[kLanes];
    keys.LocateLanes(key + panel - offset, inside, at);
    for (int64_t step = inside.begin / 2; 2 * step < inside.end; ++step) {
      float* out = to.data + (panel / 2 + step) * kLanes;
      for (int64_t d = 0; d < dim; d += kLanes, out += to.stride) {
        Store(out, LoadValuePair(keys.plane->data, at[2 * step] + d, at[2 * step + 1] + d, dim - d,
                                 PairMask(inside, step)));
      }
    }
  }
}

#endif

}  // namespace
}  // namespace baton
