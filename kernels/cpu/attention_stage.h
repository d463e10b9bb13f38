#pragma once

// Brings keys and values from the paged cache into the order of attention_tile.h. Internal linkage,
// as in vec.h.

#include "kernels/api/cache_args.h"
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/lane_convert.h"
#include "kernels/cpu/vec.h"

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
};

#if defined(__AVX512F__)

// Rows become columns.
BATON_INLINE void Transpose(__m512 (&r)[kLanes]) {
  __m512 t[kLanes];
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

BATON_INLINE void StoreTransposed(const Vec (&rows)[kLanes], int64_t columns, float* to) {
  __m512 r[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) r[i] = rows[i].p[0];
  Transpose(r);
  if (columns == kLanes) {
#pragma GCC unroll 16
    for (int c = 0; c < kLanes; ++c) _mm512_storeu_ps(to + c * kLanes, r[c]);
    return;
  }
  for (int64_t c = 0; c < columns; ++c) _mm512_storeu_ps(to + c * kLanes, r[c]);
}

#else

typedef float Four __attribute__((vector_size(16)));
typedef int32_t FourIndexes __attribute__((vector_size(16)));

// Four rows of four, `stride` apart, become four columns, 16 apart.
BATON_INLINE void TransposeFour(const float* from, float* to) {
  Four r[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&r[i], from + i * kLanes, sizeof(Four));
  const Four ab_low = __builtin_shuffle(r[0], r[1], FourIndexes{0, 4, 1, 5});
  const Four ab_high = __builtin_shuffle(r[0], r[1], FourIndexes{2, 6, 3, 7});
  const Four cd_low = __builtin_shuffle(r[2], r[3], FourIndexes{0, 4, 1, 5});
  const Four cd_high = __builtin_shuffle(r[2], r[3], FourIndexes{2, 6, 3, 7});
  const Four out[4] = {__builtin_shuffle(ab_low, cd_low, FourIndexes{0, 1, 4, 5}),
                       __builtin_shuffle(ab_low, cd_low, FourIndexes{2, 3, 6, 7}),
                       __builtin_shuffle(ab_high, cd_high, FourIndexes{0, 1, 4, 5}),
                       __builtin_shuffle(ab_high, cd_high, FourIndexes{2, 3, 6, 7})};
  for (int i = 0; i < 4; ++i) std::memcpy(to + i * kLanes, &out[i], sizeof(Four));
}

// to[c][row] = rows[row][c] for the first `columns`.
BATON_INLINE void StoreTransposed(const Vec (&rows)[kLanes], int64_t columns, float* to) {
  float square[kLanes * kLanes];
  float turned[kLanes * kLanes];
  for (int i = 0; i < kLanes; ++i) Store(square + i * kLanes, rows[i]);
  for (int row = 0; row < kLanes; row += 4) {
    for (int c = 0; c < kLanes; c += 4) {
      TransposeFour(square + row * kLanes + c, turned + c * kLanes + row);
    }
  }
  std::memcpy(to, turned, columns * kLanes * sizeof(float));
}

#endif

// n elements from `at`, the rest zero.
template <DType kType>
BATON_INLINE Vec LoadUpTo(const std::byte* data, int64_t at, int64_t n) {
  if (n >= kLanes) return LoadLanes<kType>(data, at);
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = LoadOne<kType>(data, at + i);
  return Load(lanes);
}

// 16 dwords, each two neighbours of bf16; n elements, the rest zero.
BATON_INLINE Vec LoadDwords(const std::byte* data, int64_t at, int64_t n) {
  Vec v;
  if (n >= 2 * kLanes) {
    std::memcpy(&v, data + at * 2, sizeof(v));
    return v;
  }
  std::byte bytes[sizeof(Vec)] = {};
  std::memcpy(bytes, data + at * 2, n * 2);
  std::memcpy(&v, bytes, sizeof(v));
  return v;
}

// Keys [key, key + count), count in [1, 16], become one panel [steps of dim][16 keys]; lanes
// outside are zero. The first key stands in lane `lane`.
template <DType kType, AttentionForm kForm>
void StageKeyPanel(const HeadKeys& keys, int64_t key, int64_t count, int64_t lane, float* to) {
  constexpr int64_t kStepDim = kStep<kForm>;
  const int64_t dim = keys.plane->dim;
  int64_t at[kLanes];
  keys.Locate(key, count, at);
  const std::byte* data = keys.plane->data;
  const Vec scale = Broadcast(keys.scale());
  const bool whole = count == kLanes;
  for (int64_t d = 0; d < dim; d += kLanes * kStepDim) {
    const auto load = [&](int64_t i) {
      if constexpr (kForm == AttentionForm::kBf16Dot) return LoadDwords(data, at[i] + d, dim - d);
      const Vec v = LoadUpTo<kType>(data, at[i] + d, dim - d);
      return IsFp8(kType) ? v * scale : v;
    };
    Vec rows[kLanes];
    if (whole) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) rows[i] = load(i);
    } else {
      for (Vec& row : rows) row = Zero();
      for (int64_t i = 0; i < count; ++i) rows[lane + i] = load(i);
    }
    const int64_t left = (dim - d + kStepDim - 1) / kStepDim;
    StoreTransposed(rows, left < kLanes ? left : kLanes, to + d / kStepDim * kLanes);
  }
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

// The same in pairs of keys, the first of each pair at an even offset; a partner outside the range
// is zero.
inline void StageValuePairs(const HeadKeys& keys, int64_t key, int64_t count, int64_t offset,
                            const ValueStage& to) {
  const int64_t dim = keys.plane->dim;
  const auto load = [&](int64_t at, int64_t left) {
    const std::byte* from = keys.plane->data + at * 2;
    std::byte bytes[32] = {};
    if (left < kLanes) {
      std::memcpy(bytes, from, left * 2);
      from = bytes;
    }
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  };
  const int64_t end = offset + count;
  for (int64_t even = offset / 2 * 2; even < end; even += 2) {
    const bool has_first = even >= offset;
    const bool has_second = even + 1 < end;
    int64_t at[kLanes];
    keys.Locate(key + (has_first ? even : even + 1) - offset, has_first && has_second ? 2 : 1, at);
    const int64_t second_at = has_first ? at[1] : at[0];
    float* out = to.data + even / 2 * kLanes;
    for (int64_t d = 0; d < dim; d += kLanes, out += to.stride) {
      __m512i pair = has_first ? load(at[0] + d, dim - d) : _mm512_setzero_si512();
      if (has_second) {
        pair = _mm512_or_si512(pair, _mm512_slli_epi32(load(second_at + d, dim - d), 16));
      }
      _mm512_storeu_si512(out, pair);
    }
  }
}

#endif

}  // namespace
}  // namespace baton
