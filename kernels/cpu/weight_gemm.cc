#include "kernels/cpu/weight_gemm.h"

#include <utility>

#include "kernels/cpu/lane_convert.h"
#include "kernels/cpu/vec.h"

namespace baton::BATON_KERNEL_SET {
namespace {

constexpr int64_t kPanelRows = Panels::kRows;
// Vectors of 16 columns that one pass over k holds: a whole panel, or one half after the other
// where registers are too few.
template <int kRows>
inline constexpr int kVecs = kMaxTileRows > 6 || kRows <= 3 ? 2 : 1;
// Steps of k whose activations (a tile) stay in the first cache and whose weights (two panels) stay
// in the second while all tiles pass by.
constexpr int64_t kBlockSteps = 1024;
// Panels that a tile meets before the next tile is read.
constexpr int64_t kGroupPanels = 2;
// With so few rows a weight is used up sooner than memory brings the next one: the hardware's
// prefetch is busy all the time, and leads best with every other line named 4 KiB ahead. More rows
// leave it gaps in which it falls back: there every line is named, twice as far ahead.
constexpr int64_t kFewRows = 5;
constexpr int64_t kFewRowsAhead = 4096;
constexpr int64_t kManyRowsAhead = 8192;
constexpr int64_t kLineBytes = 64;

// How the weights are stored and multiplied.
enum class Form { kF32, kF16, kBf16, kBf16Dot };

// A step is what one turn of the inner loop takes: a pair of k for bf16, else one.
template <Form kForm>
inline constexpr int64_t kStepK = kForm == Form::kBf16 || kForm == Form::kBf16Dot ? 2 : 1;
template <Form kForm>
inline constexpr int64_t kStepBytes = kPanelRows*(kForm == Form::kF16 ? 2 : 4);
// Of activations, per row.
template <Form kForm>
inline constexpr int64_t kActivationBytes = kForm == Form::kBf16 ? 8 : 4;

struct TileArgs {
  const std::byte* a = nullptr;
  const std::byte* w = nullptr;
  int64_t steps = 0;     // Of a segment.
  int64_t segments = 1;  // One after the other, to be added as a tree.
  // Sums of earlier segments, a level after the other, to be added to these.
  const float* pending = nullptr;
  int64_t num_pending = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
  int64_t columns = 0;              // To write, from the first of the panel; may exceed it.
  const float* bias = nullptr;      // [columns] to add, or null.
  bool accumulate = false;          // Continue the sums that `out` holds.
  const std::byte* next = nullptr;  // Weights that will be wanted after these.
  int64_t next_step = 0;            // Bytes of them per step.
};

BATON_INLINE Vec BitsToVec(const IntPart (&bits)[kParts]) {
  Vec v;
  BATON_EACH_PART std::memcpy(&v.p[i], &bits[i], sizeof(Part));
  return v;
}

// Of 16 pairs of bf16 the first of each, or the second.
template <bool kSecond>
BATON_INLINE Vec LoadOfPairs(const std::byte* from) {
  IntPart bits[kParts];
  BATON_EACH_PART {
    std::memcpy(&bits[i], from + i * sizeof(Part), sizeof(Part));
    bits[i] = kSecond ? bits[i] & static_cast<int32_t>(0xffff0000u) : bits[i] << 16;
  }
  return BitsToVec(bits);
}

// sum[r] += x[r] * weight.
template <int kRows>
BATON_INLINE void AddProducts(const float* x, const Vec (&weight)[kVecs<kRows>],
                              Vec (&sum)[kRows][kVecs<kRows>]) {
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs<kRows>; ++v) sum[r][v] = Fma(Broadcast(x[r]), weight[v], sum[r][v]);
  }
}

// One step for the columns that begin at `w`: sum[r] += a[r] * w.
template <int kRows, Form kForm>
BATON_INLINE void Step(const std::byte* a, const std::byte* w, Vec (&sum)[kRows][kVecs<kRows>]) {
  const auto* x = reinterpret_cast<const float*>(a);
#if defined(__AVX512BF16__)
  if constexpr (kForm == Form::kBf16Dot) {
    __m512bh weight[kVecs<kRows>];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs<kRows>; ++v) weight[v] = (__m512bh)_mm512_loadu_si512(w + v * 64);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      int32_t pair;
      std::memcpy(&pair, a + r * 4, 4);
#pragma GCC unroll 2
      for (int v = 0; v < kVecs<kRows>; ++v) {
        sum[r][v].p[0] =
            _mm512_dpbf16_ps(sum[r][v].p[0], (__m512bh)_mm512_set1_epi32(pair), weight[v]);
      }
    }
    return;
  }
#endif
  if constexpr (kForm == Form::kBf16) {
    Vec weight[kVecs<kRows>];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs<kRows>; ++v) weight[v] = LoadOfPairs<false>(w + v * 64);
    AddProducts<kRows>(x, weight, sum);
    asm("" : "+r"(w));  // Read again: registers that would hold the pairs meanwhile are few.
#pragma GCC unroll 2
    for (int v = 0; v < kVecs<kRows>; ++v) weight[v] = LoadOfPairs<true>(w + v * 64);
    AddProducts<kRows>(x + kRows, weight, sum);
    return;
  }
  constexpr DType kType = kForm == Form::kF16 ? DType::kF16 : DType::kF32;
  Vec weight[kVecs<kRows>];
#pragma GCC unroll 2
  for (int v = 0; v < kVecs<kRows>; ++v) weight[v] = LoadLanes<kType>(w, v * kLanes);
  AddProducts<kRows>(x, weight, sum);
}

// Calls body(r, v) for every sum of a tile, without a loop in the code: the sums stay in registers.
template <int kRows, typename Body>
BATON_INLINE void ForSums(Body body) {
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs<kRows>; ++v) body(r, v);
  }
}

// kRows rows with columns [column, column + 16 * kVecs<kRows>) of a panel. Each sum takes its
// products in the order of k, whatever kRows is.
template <int kRows, Form kForm>
void HalfTile(const TileArgs& t, int64_t column) {
  Vec sum[kRows][kVecs<kRows>];
  float* out = t.out + column;
  const int64_t stride = t.out_stride;
  int64_t left[kVecs<kRows>];  // Columns of each vector.
#pragma GCC unroll 2
  for (int v = 0; v < kVecs<kRows>; ++v) {
    const int64_t n = t.columns - column - v * kLanes;
    left[v] = n < 0 ? 0 : n < kLanes ? n : kLanes;
  }
  const bool whole = left[kVecs<kRows> - 1] == kLanes;
  if (!t.accumulate) {
    ForSums<kRows>([&](int r, int v) { sum[r][v] = Zero(); });
  } else if (whole) {
    ForSums<kRows>([&](int r, int v) { sum[r][v] = Load(out + r * stride + v * kLanes); });
  } else {
    ForSums<kRows>(
        [&](int r, int v) { sum[r][v] = LoadFirst(out + r * stride + v * kLanes, left[v]); });
  }
  const std::byte* a = t.a;
  const std::byte* w = t.w + column * (kForm == Form::kF16 ? 2 : 4);
  const std::byte* next = t.next;
  const int64_t next_line = t.next_step > kLineBytes ? kLineBytes : 0;
  Vec levels[kPendingLevels][kRows][kVecs<kRows>];
  for (int64_t segment = 0;;) {
    for (int64_t s = 0; s < t.steps; ++s) {
      Step<kRows, kForm>(a, w, sum);
      __builtin_prefetch(next, 0, 2);
      if constexpr (kRows > kFewRows) __builtin_prefetch(next + next_line, 0, 2);
      a += kRows * kActivationBytes<kForm>;
      w += kStepBytes<kForm>;
      next += t.next_step;
    }
    const int64_t merges = NumMerges(segment);
    for (int64_t level = 0; level < merges; ++level) {
      ForSums<kRows>([&](int r, int v) { sum[r][v] = levels[level][r][v] + sum[r][v]; });
    }
    if (++segment == t.segments) break;
    ForSums<kRows>([&](int r, int v) { levels[merges][r][v] = sum[r][v]; });
    ForSums<kRows>([&](int r, int v) { sum[r][v] = Zero(); });
  }
  for (int64_t level = 0; level < t.num_pending; ++level) {
    const float* pending = t.pending + level * kPendingLevel + column;
    ForSums<kRows>([&](int r, int v) {
      sum[r][v] = Load(pending + r * kPendingColumns + v * kLanes) + sum[r][v];
    });
  }
  if (t.bias != nullptr) {
    Vec bias[kVecs<kRows>];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs<kRows>; ++v) {
      bias[v] = LoadFirst(t.bias + column + v * kLanes, left[v]);
    }
    ForSums<kRows>([&](int r, int v) { sum[r][v] = sum[r][v] + bias[v]; });
  }
  if (whole) {
    ForSums<kRows>([&](int r, int v) { Store(out + r * stride + v * kLanes, sum[r][v]); });
  } else {
    ForSums<kRows>(
        [&](int r, int v) { StoreFirst(out + r * stride + v * kLanes, sum[r][v], left[v]); });
  }
}

template <int kRows, Form kForm>
void Tile(const TileArgs& t) {
  for (int64_t c = 0; c < kPanelRows && c < t.columns; c += kVecs<kRows> * kLanes) {
    HalfTile<kRows, kForm>(t, c);
  }
}

template <Form kForm, int... kRows>
void TileOfRows(int64_t rows, const TileArgs& t, std::integer_sequence<int, kRows...>) {
  static constexpr void (*kTiles[])(const TileArgs&) = {Tile<kRows + 1, kForm>...};
  kTiles[rows - 1](t);
}

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
};

// Steps of k that a tile takes at once: whole segments, which it adds in registers, or a part of
// one.
struct StepBlock {
  Range steps;
  int64_t segments = 1;
  int64_t index = 0;   // Among sums of so many segments.
  bool begins = true;  // That sum; false: goes on where the block before has left it.
  bool ends = true;
  bool last = true;  // The last sum, which becomes the output.
};

// All tiles with panels `panels` and k of `block`. Weights that lie `ahead` bytes after these will
// be wanted next.
template <Form kForm>
void Group(const WeightGemmBlock& b, const Range& panels, const StepBlock& block, int64_t ahead) {
  const RowTiles& a = *b.a;
  const Panels& w = *b.weights;
  const Range& steps = block.steps;
  const int64_t num_tiles = b.tile_end - b.tile_begin;
  const int64_t block_bytes = (steps.end - steps.begin) * kStepBytes<kForm>;
  const int64_t level = NumMerges(block.index);
  const bool is_output = block.last && block.ends;
  for (int64_t tile = b.tile_begin; tile < b.tile_end; ++tile) {
    const int64_t row = a.Begin(tile);
    const int64_t rows = a.Begin(tile + 1) - row;
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
      const int64_t column = panel * kPanelRows;
      const std::byte* weights =
          w.data() + panel * w.panel_stride() + steps.begin * kStepBytes<kForm>;
      TileArgs t = {.a = a.Tile(tile) + steps.begin * rows * kActivationBytes<kForm>,
                    .w = weights,
                    .steps = (steps.end - steps.begin) / block.segments,
                    .segments = block.segments,
                    .out = b.out + row * b.out_stride + column,
                    .out_stride = b.out_stride,
                    .columns = w.n() - column,
                    .bias = is_output && b.bias != nullptr ? b.bias + column : nullptr,
                    .accumulate = !block.begins,
                    // Each tile asks for its share of what comes next.
                    .next = weights + ahead + (tile - b.tile_begin) * block_bytes / num_tiles,
                    .next_step = kStepBytes<kForm> / num_tiles};
      if (block.index > 0 || !block.last) {
        float* pending = b.pending + (row - a.Begin(b.tile_begin)) * kPendingColumns +
                         (panel - panels.begin) * kPanelRows;
        t.pending = pending;
        t.num_pending = block.ends ? level : 0;
        if (!block.last) {
          t.out = pending + level * kPendingLevel;
          t.out_stride = kPendingColumns;
        }
      }
      TileOfRows<kForm>(rows, t, std::make_integer_sequence<int, kMaxTileRows>());
    }
  }
}

template <Form kForm>
void Blocks(const WeightGemmBlock& b) {
  const int64_t total_steps = b.a->padded_k / kStepK<kForm>;
  const bool streams = b.tile_end - b.tile_begin == 1;
  // One tile reads each weight once: nothing to keep, and the panels lie in a row.
  const int64_t most = streams ? total_steps : kBlockSteps;
  const int64_t group = streams ? 1 : kGroupPanels;
  const int64_t stream_ahead = b.a->m <= kFewRows ? kFewRowsAhead : kManyRowsAhead;
  int64_t segments = b.segments;  // Of a block.
  while (segments > 1 && total_steps / b.segments * segments > most) segments /= 2;
  const int64_t num_sums = b.segments / segments;
  const int64_t sum_steps = total_steps / num_sums;
  for (int64_t panel = b.panel_begin; panel < b.panel_end; panel += group) {
    const int64_t end = panel + group < b.panel_end ? panel + group : b.panel_end;
    for (int64_t step = 0; step < total_steps;) {
      const int64_t index = step / sum_steps;
      const int64_t sum_end = (index + 1) * sum_steps;
      const int64_t step_end = step + most < sum_end ? step + most : sum_end;
      const int64_t in_panel = (step_end - step) * kStepBytes<kForm>;
      const int64_t to_next_group = group * b.weights->panel_stride() - step * kStepBytes<kForm>;
      const int64_t ahead = streams                  ? stream_ahead
                            : step_end < total_steps ? in_panel
                                                     : to_next_group;
      Group<kForm>(b, {panel, end},
                   {.steps = {step, step_end},
                    .segments = segments,
                    .index = index,
                    .begins = step == index * sum_steps,
                    .ends = step_end == sum_end,
                    .last = index + 1 == num_sums},
                   ahead);
      step = step_end;
    }
  }
}

}  // namespace

void PackActivations(const float* a, int64_t a_stride, int64_t k, const RowTiles& tiles,
                     int64_t tile) {
#if defined(__AMX_BF16__)
  if (tiles.bf16_group == kAmxStepK) return AmxPackActivations(a, a_stride, k, tiles, tile);
#endif
  const int64_t begin = tiles.Begin(tile);
  const int64_t rows = tiles.Begin(tile + 1) - begin;
  // Dwords: floats, or pairs of bf16.
  const int64_t dwords = tiles.row_bytes() / 4;
  std::byte* out = tiles.Tile(tile);
  constexpr int64_t kChunk = 32;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = a + (begin + r) * a_stride;
    for (int64_t d = 0; d < dwords; d += kChunk) {
      uint32_t chunk[kChunk] = {};
      const int64_t count = dwords - d < kChunk ? dwords - d : kChunk;
      if (tiles.bf16_group > 0) {
        uint16_t halves[2 * kChunk] = {};
        const int64_t left = k - 2 * d < 2 * kChunk ? k - 2 * d : 2 * kChunk;
        for (int64_t i = 0; i < left; ++i) halves[i] = ToBf16(row[2 * d + i]);
        std::memcpy(chunk, halves, sizeof(chunk));
      } else {
        const int64_t left = k - d < kChunk ? k - d : kChunk;
        std::memcpy(chunk, row + d, left * 4);
      }
      std::byte* to = out + (d * rows + r) * 4;
      for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * rows * 4, &chunk[i], 4);
    }
  }
}

void WeightGemm(const WeightGemmBlock& block) {
  switch (block.weights->dtype()) {
    case DType::kF32:
      return Blocks<Form::kF32>(block);
    case DType::kF16:
      return Blocks<Form::kF16>(block);
    case DType::kBF16:
#if defined(__AMX_BF16__)
      if (block.a->bf16_group > 0) return AmxGemm(block);
#elif defined(__AVX512BF16__)
      if (block.a->bf16_group > 0) return Blocks<Form::kBf16Dot>(block);
#endif
      return Blocks<Form::kBf16>(block);
    case DType::kFp8E4M3:
    case DType::kFp8E5M2:
      return;  // No weights of these types.
  }
}

}  // namespace baton::BATON_KERNEL_SET
