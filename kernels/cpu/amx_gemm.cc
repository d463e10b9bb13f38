#include "kernels/cpu/amx_gemm.h"

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/vec.h"

namespace baton::BATON_KERNEL_SET {
namespace {

constexpr int64_t kPanelRows = Panels::kRows;
constexpr int64_t kTileColumns = 16;
constexpr int64_t kTileFloats = kTileColumns * 16;
// Sums of two tiles of rows with a panel: [2 of rows][2 of columns][16][16].
constexpr int64_t kBlockFloats = 4 * kTileFloats;
constexpr int64_t kStepBytes = kAmxStepK * kPanelRows * 2;  // Of a panel.
constexpr int64_t kRowStepBytes = kAmxStepK * 2;
constexpr int64_t kLineBytes = 64;
// Row tiles that meet a panel one after the other: their activations for one block of k, and their
// sums with a group of panels, stay in the second cache. Sums of segments take more of it.
template <bool kSegments>
inline constexpr int64_t kGroupTiles = kSegments ? 8 : 16;
// Of sums: those that wait for their neighbours, and the whole one.
template <bool kSegments>
inline constexpr int64_t kLevels = kSegments ? kPendingLevels + 1 : 1;
// Steps of a block: weights of a panel that stay in the first cache meanwhile (16 KiB).
constexpr int64_t kBlockSteps = 8;
// An output larger than this is in no near cache when it is wanted: it is written past them, which
// saves reading it first.
constexpr int64_t kFarOutputBytes = int64_t{1} << 20;
// How far ahead a product of few rows asks for weights.
constexpr int64_t kStreamAhead = 8192;

// The tile registers: sums of (upper rows, left columns), (upper, right), (lower, left), (lower,
// right); activations of the upper and of the lower rows; weights of the left and right columns.
TileSession TilesOf(int64_t tile_rows) {
  const auto upper = static_cast<uint8_t>(tile_rows < 16 ? tile_rows : 16);
  const auto lower = static_cast<uint8_t>(tile_rows - upper);
  return TileSession({upper, upper, lower, lower, upper, lower, 16, 16});
}

// The last step of a panel whose k is no multiple of kAmxStepK, filled with zeros.
struct alignas(64) TailStep {
  std::byte bytes[kStepBytes] = {};
};

// What will be wanted later, and how much of it to ask for in a step.
struct Ahead {
  const std::byte* at = nullptr;
  int64_t step_bytes = 0;

  BATON_INLINE void Ask() {
    for (int64_t i = 0; i < step_bytes; i += kLineBytes) __builtin_prefetch(at + i, 0, 2);
    at += step_bytes;
  }
};

// Where activations and weights lie, and those that come after; a step further each time.
struct Cursor {
  const std::byte* a = nullptr;
  const std::byte* w = nullptr;
  int64_t a_step = 0;
  Ahead next_w;
  Ahead next_a;

  BATON_INLINE void Advance() {
    next_w.Ask();
    next_a.Ask();
    a += a_step;
    w += kStepBytes;
  }
};

// One step of rows that pass by weights which stay in the first cache.
BATON_INLINE void StepOfRows(const Cursor& c) {
  BATON_TILE_STREAM(4, c.a, 64);
  BATON_TILE_LOAD(6, c.w, 128);
  BATON_TILE_PRODUCT(0, 4, 6);
  BATON_TILE_LOAD(7, c.w + 64, 128);
  BATON_TILE_PRODUCT(1, 4, 7);
  BATON_TILE_STREAM(5, c.a + 16 * kRowStepBytes, 64);
  BATON_TILE_PRODUCT(2, 5, 6);
  BATON_TILE_PRODUCT(3, 5, 7);
}

// Sums in the registers, and where they go; then the sums of so many levels below are added, each
// of which lies kBlockFloats * `stride` before the next.
struct Before {
  float* sums = nullptr;
  int64_t merges = 0;
  int64_t stride = 0;

  BATON_INLINE void Merge() const {
    for (int64_t level = merges; level > 0; --level) {
      const float* pending = sums - level * stride * kBlockFloats;
      for (int64_t i = 0; i < kBlockFloats; i += kLanes) {
        Store(sums + i, Load(pending + i) + Load(sums + i));
      }
    }
  }
};

// Stores a sum of the block before to its place and makes it the one of this block.
#define BATON_TURN_OVER(tile)                                   \
  BATON_TILE_STORE(tile, before.sums + (tile)*kTileFloats, 64); \
  if (accumulate) {                                             \
    BATON_TILE_LOAD(tile, sums + (tile)*kTileFloats, 64);       \
  } else {                                                      \
    BATON_TILE_ZERO(tile);                                      \
  }

// Two tiles of rows with a panel over `steps`, from zero or from `sums`. Leaves its sums in the
// registers and stores those of the block before: a store waits for its product, and other products
// need not wait for the store, nor for the additions behind it.
BATON_INLINE void RowsBlock(Cursor c, int64_t steps, const TailStep* tail, bool accumulate,
                            const float* sums, const Before& before) {
  if (steps == 0) c.w = tail->bytes;
  BATON_TILE_STREAM(4, c.a, 64);
  BATON_TILE_LOAD(6, c.w, 128);
  BATON_TURN_OVER(0);
  BATON_TILE_PRODUCT(0, 4, 6);
  BATON_TILE_LOAD(7, c.w + 64, 128);
  BATON_TURN_OVER(1);
  BATON_TILE_PRODUCT(1, 4, 7);
  BATON_TILE_STREAM(5, c.a + 16 * kRowStepBytes, 64);
  BATON_TURN_OVER(2);
  BATON_TILE_PRODUCT(2, 5, 6);
  BATON_TURN_OVER(3);
  BATON_TILE_PRODUCT(3, 5, 7);
  before.Merge();
  if (steps == 0) return;
  c.Advance();
  for (int64_t s = 1; s < steps; ++s) {
    StepOfRows(c);
    c.Advance();
  }
  if (tail == nullptr) return;
  c.w = tail->bytes;
  StepOfRows(c);
}

BATON_INLINE void StoreSums(float* sums) {
  BATON_TILE_STORE(0, sums, 64);
  BATON_TILE_STORE(1, sums + kTileFloats, 64);
  BATON_TILE_STORE(2, sums + 2 * kTileFloats, 64);
  BATON_TILE_STORE(3, sums + 3 * kTileFloats, 64);
}

// One step of weights that pass by once. Their loads come first: they wait for memory.
template <bool kTwoTiles>
BATON_INLINE void StepOfWeights(const Cursor& c) {
  BATON_TILE_STREAM(6, c.w, 128);
  BATON_TILE_STREAM(7, c.w + 64, 128);
  BATON_TILE_LOAD(4, c.a, 64);
  BATON_TILE_PRODUCT(0, 4, 6);
  BATON_TILE_PRODUCT(1, 4, 7);
  if constexpr (kTwoTiles) {
    BATON_TILE_LOAD(5, c.a + 16 * kRowStepBytes, 64);
    BATON_TILE_PRODUCT(2, 5, 6);
    BATON_TILE_PRODUCT(3, 5, 7);
  }
}

// The only tile of rows with a panel over all of k, or a segment of it.
template <bool kTwoTiles>
BATON_INLINE void WeightsBlock(Cursor c, int64_t steps, const TailStep* tail, float* sums) {
  BATON_TILE_ZERO(0);
  BATON_TILE_ZERO(1);
  if constexpr (kTwoTiles) {
    BATON_TILE_ZERO(2);
    BATON_TILE_ZERO(3);
  }
  for (int64_t s = 0; s < steps; ++s) {
    StepOfWeights<kTwoTiles>(c);
    c.Advance();
  }
  if (tail != nullptr) {
    c.w = tail->bytes;
    StepOfWeights<kTwoTiles>(c);
  }
  BATON_TILE_STORE(0, sums, 64);
  BATON_TILE_STORE(1, sums + kTileFloats, 64);
  if constexpr (kTwoTiles) {
    BATON_TILE_STORE(2, sums + 2 * kTileFloats, 64);
    BATON_TILE_STORE(3, sums + 3 * kTileFloats, 64);
  }
}

// A product that is being computed, and how it divides into steps.
struct Product {
  const WeightGemmBlock* block = nullptr;
  int64_t steps = 0;       // Whole ones.
  int64_t segment = 0;     // Steps of one; of several.
  int64_t tail_bytes = 0;  // Of the last, incomplete one in a panel.
  int64_t tile_bytes = 0;  // Of a tile of rows.
  int64_t a_step = 0;

  explicit Product(const WeightGemmBlock& b)
      : block(&b),
        steps(b.weights->padded_k() / kAmxStepK),
        segment(b.segments > 1 ? steps / b.segments : steps),
        tail_bytes(b.weights->panel_bytes() - steps * kStepBytes),
        tile_bytes(b.a->tile_rows * b.a->row_bytes()),
        a_step(b.a->tile_rows * kRowStepBytes) {}

  const std::byte* Panel(int64_t panel) const {
    return block->weights->data() + panel * block->weights->panel_stride();
  }
  TailStep Tail(int64_t panel) const {
    TailStep tail;
    std::memcpy(tail.bytes, Panel(panel) + steps * kStepBytes, tail_bytes);
    return tail;
  }
};

// Writes row `row` of the sums of panels [begin, end) to `out`, `stride` floats of sums from panel
// to panel. With `past_caches` by stores that go there, if they can; 16 bytes at a time, as rows
// begin anywhere in a line.
void WriteRow(const WeightGemmBlock& b, int64_t begin, int64_t end, const float* sums,
              int64_t stride, float* out, bool past_caches) {
  for (int64_t panel = begin; panel < end; ++panel) {
    for (int64_t c = 0; c < kPanelRows; c += kTileColumns) {
      const int64_t column = panel * kPanelRows + c;
      const int64_t left = b.weights->n() - column;
      if (left <= 0) return;
      Vec v = Load(sums + (panel - begin) * stride + c * kTileColumns);
      const int64_t n = left < kLanes ? left : kLanes;
      if (b.bias != nullptr) v = v + LoadFirst(b.bias + column, n);
      if (past_caches && n == kLanes && reinterpret_cast<uintptr_t>(out + column) % 16 == 0) {
        for (int64_t i = 0; i < kLanes; i += 4) {
          __m128 four;
          std::memcpy(&four, reinterpret_cast<const float*>(&v) + i, sizeof(four));
          _mm_stream_ps(out + column + i, four);
        }
      } else {
        StoreFirst(out + column, v, n);
      }
    }
  }
}

// Sums of row r of a tile.
const float* RowOf(const float* sums, int64_t r) {
  return sums + r / 16 * 2 * kTileFloats + r % 16 * kTileColumns;
}

// One tile of rows: each weight is used once, and panels lie in a row.
template <bool kTwoTiles>
void StreamWeights(const Product& p) {
  const WeightGemmBlock& b = *p.block;
  alignas(64) float sums[kLevels<true>][kBlockFloats];
  for (int64_t panel = b.panel_begin; panel < b.panel_end; ++panel) {
    const TailStep tail = p.tail_bytes > 0 ? p.Tail(panel) : TailStep{};
    Before whole;
    for (int64_t segment = 0; segment < b.segments; ++segment) {
      const int64_t step = segment * p.segment;
      const std::byte* weights = p.Panel(panel) + step * kStepBytes;
      const Cursor cursor = {.a = b.a->Tile(0) + step * p.a_step,
                             .w = weights,
                             .a_step = p.a_step,
                             .next_w = {weights + kStreamAhead, kStepBytes}};
      whole = {.sums = sums[NumMerges(segment)], .merges = NumMerges(segment), .stride = 1};
      WeightsBlock<kTwoTiles>(cursor, p.segment, p.tail_bytes > 0 ? &tail : nullptr, whole.sums);
      whole.Merge();
    }
    for (int64_t r = 0; r < b.a->m; ++r) {
      WriteRow(b, panel, panel + 1, RowOf(whole.sums, r), 0, b.out + r * b.out_stride, false);
    }
  }
}

// Tiles [tile_begin, tile_end) with panels [panel_begin, panel_end), at most kGroupTiles and
// kAmxPanels.
struct Group {
  int64_t tile_begin = 0;
  int64_t tile_end = 0;
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
};

// Steps that the tiles of a group take at once: a segment, or a part of it.
struct StepBlock {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t segment = 0;
  bool begins_segment = true;
  bool ends_segment = true;
};

StepBlock BlockFrom(const Product& p, int64_t step) {
  const int64_t segment = p.segment == 0 ? 0 : step / p.segment;
  const int64_t segment_end = (segment + 1) * p.segment;
  const int64_t end = step + kBlockSteps < segment_end ? step + kBlockSteps : segment_end;
  return {step, end, segment, step == segment * p.segment, end == segment_end};
}

// Where what follows a block of a panel lies: the same block of the next panel, or the next block
// of the first. Null where neither is.
const std::byte* NextWeights(const Product& p, const Group& g, int64_t panel,
                             const StepBlock& block) {
  if (panel + 1 < g.panel_end) return p.Panel(panel + 1) + block.begin * kStepBytes;
  if (block.end < p.steps) return p.Panel(g.panel_begin) + block.end * kStepBytes;
  return nullptr;
}

// Where the rows of a tile with a panel begin, at a block. Of the block that comes next each tile
// asks for its share of the weights, and each panel for its share of the activations.
Cursor CursorAt(const Product& p, const Group& g, int64_t tile, int64_t panel,
                const StepBlock& block) {
  const int64_t steps = block.end - block.begin;
  const std::byte* a = p.block->a->Tile(tile);
  const std::byte* next_w = NextWeights(p, g, panel, block);
  const int64_t w_share = next_w == nullptr ? 0 : kStepBytes / (g.tile_end - g.tile_begin);
  const int64_t a_share = p.a_step / (g.panel_end - g.panel_begin);
  // After the last block the first, with the next panels.
  const std::byte* next_a = a + (block.end < p.steps ? block.end : 0) * p.a_step;
  return {.a = a + block.begin * p.a_step,
          .w = p.Panel(panel) + block.begin * kStepBytes,
          .a_step = p.a_step,
          .next_w = {next_w + (tile - g.tile_begin) * w_share * steps, w_share},
          .next_a = {next_a + (panel - g.panel_begin) * a_share * steps, a_share}};
}

// Sums of a group, by level, panel and tile.
template <bool kSegments>
struct alignas(64) GroupSums {
  float at[kLevels<kSegments>][kAmxPanels][kGroupTiles<kSegments>][kBlockFloats];

  static constexpr int64_t kLevelStride = kAmxPanels * kGroupTiles<kSegments>;  // In blocks.
};

template <bool kSegments>
void SumGroup(const Product& p, const Group& g, GroupSums<kSegments>& sums) {
  alignas(64) float nowhere[kBlockFloats];
  Before before = {.sums = nowhere};
  for (int64_t step = 0; step == 0 || step < p.steps;) {
    const StepBlock block = BlockFrom(p, step);
    const bool has_tail = block.end == p.steps && p.tail_bytes > 0;
    const int64_t level = NumMerges(block.segment);
    for (int64_t panel = g.panel_begin; panel < g.panel_end; ++panel) {
      const TailStep tail = has_tail ? p.Tail(panel) : TailStep{};
      for (int64_t tile = g.tile_begin; tile < g.tile_end; ++tile) {
        float* here = sums.at[level][panel - g.panel_begin][tile - g.tile_begin];
        RowsBlock(CursorAt(p, g, tile, panel, block), block.end - block.begin,
                  has_tail ? &tail : nullptr, !block.begins_segment, here, before);
        before = {.sums = here,
                  .merges = block.ends_segment ? level : 0,
                  .stride = GroupSums<kSegments>::kLevelStride};
      }
    }
    step = block.end > step ? block.end : step + 1;
  }
  StoreSums(before.sums);
  before.Merge();
}

template <bool kSegments>
void WriteGroup(const Product& p, const Group& g, const GroupSums<kSegments>& sums) {
  const RowTiles& a = *p.block->a;
  const bool past_caches = a.m * p.block->weights->n() * 4 > kFarOutputBytes;
  const auto& whole = sums.at[NumMerges(p.block->segments - 1)];
  for (int64_t tile = g.tile_begin; tile < g.tile_end; ++tile) {
    for (int64_t row = a.Begin(tile); row < a.Begin(tile + 1); ++row) {
      const float* from = RowOf(whole[0][tile - g.tile_begin], row - a.Begin(tile));
      WriteRow(*p.block, g.panel_begin, g.panel_end, from, kGroupTiles<kSegments> * kBlockFloats,
               p.block->out + row * p.block->out_stride, past_caches);
    }
  }
}

// Several tiles of rows: a block of a panel stays in the first cache while they pass by.
template <bool kSegments>
void StreamRows(const Product& p) {
  const WeightGemmBlock& b = *p.block;
  constexpr int64_t kTiles = kGroupTiles<kSegments>;
  GroupSums<kSegments> sums;
  for (int64_t panel = b.panel_begin; panel < b.panel_end; panel += kAmxPanels) {
    const int64_t panel_end = panel + kAmxPanels < b.panel_end ? panel + kAmxPanels : b.panel_end;
    for (int64_t tile = b.tile_begin; tile < b.tile_end; tile += kTiles) {
      const int64_t tile_end = tile + kTiles < b.tile_end ? tile + kTiles : b.tile_end;
      const Group group = {tile, tile_end, panel, panel_end};
      SumGroup(p, group, sums);
      WriteGroup(p, group, sums);
    }
  }
  _mm_sfence();  // Whoever waits for this task sees the rows that went past the caches.
}

// 16 floats as bf16, rounded to nearest even, as ToBf16.
BATON_INLINE __m256i ToBf16Lanes(const Vec& v) {
  const __m512i bits = _mm512_castps_si512(v.p[0]);
  const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(v.p[0], v.p[0], _CMP_UNORD_Q);
  const __m512i chosen = _mm512_mask_blend_epi32(is_nan, rounded, quiet);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
}

}  // namespace

void AmxPackActivations(const float* a, int64_t a_stride, int64_t k, const RowTiles& tiles,
                        int64_t tile) {
  const int64_t begin = tiles.Begin(tile);
  const int64_t rows = tiles.Begin(tile + 1) - begin;
  const int64_t step_bytes = tiles.tile_rows * kRowStepBytes;
  const int64_t steps = tiles.padded_k / kAmxStepK;
  for (int64_t r = 0; r < tiles.tile_rows; ++r) {
    const float* row = a + (begin + r) * a_stride;
    std::byte* out = tiles.Tile(tile) + r * kRowStepBytes;
    for (int64_t s = 0; s < steps; ++s) {
      __m256i half[2] = {};
      for (int64_t h = 0; r < rows && h < 2; ++h) {
        const int64_t from = s * kAmxStepK + h * kLanes;
        const int64_t left = k - from;
        const int64_t n = left < 0 ? 0 : left < kLanes ? left : kLanes;
        half[h] = ToBf16Lanes(LoadFirst(row + from, n));
      }
      std::memcpy(out + s * step_bytes, half, sizeof(half));
    }
  }
}

void AmxGemm(const WeightGemmBlock& block) {
  const Product product(block);
  const TileSession session = TilesOf(block.a->tile_rows);
  if (block.a->num_tiles > 1 && block.segments > 1) {
    StreamRows<true>(product);
  } else if (block.a->num_tiles > 1) {
    StreamRows<false>(product);
  } else if (block.a->tile_rows > 16) {
    StreamWeights<true>(product);
  } else {
    StreamWeights<false>(product);
  }
}

}  // namespace baton::BATON_KERNEL_SET
