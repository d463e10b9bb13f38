#include "kernels/cpu/gemm_runner.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/cpu/tasks.h"

namespace baton {
namespace {

// Tiles of activations are whole lines of a cache: split ones would be read at a third of the
// speed.
constexpr int64_t kLineBytes = 64;
// Weights that pass by once are read by tasks of about so many bytes. A kernel asks for what comes
// behind what it multiplies: at the end of a task another thread has it.
constexpr int64_t kStreamBytes = int64_t{1} << 20;

}  // namespace

void GemmRunner::Run(const GemmArgs& args) {
  Clear({});
  static_assert(kWeightRows % Panels::kRows == 0);
  Add(args.m, args.a_rounded_to, Panels(*args.weights).Rows(args.first_row, args.n()), args.bias,
      args.out.f32(), args.segments);
  PackRows({.a = args.a.f32(), .a_stride = args.a_stride});
  Multiply(args.out_stride);
}

void GemmRunner::Run(const ExpertGemmArgs& args) {
  if (args.num_experts == 0) return;
  Clear({.count = args.num_segments, .out_stride = args.segment_stride});
  const int64_t k = args.segment_k(), first = args.first_segment * k;
  for (int64_t e = 0; e < args.num_experts; ++e) {
    const int64_t begin = args.expert_offsets[e];
    const Panels weights(args.weights[e]);
    Add(args.expert_offsets[e + 1] - begin, args.a_rounded_to,
        weights.Columns(first, args.num_segments * k),
        args.bias == nullptr ? nullptr : args.bias + e * weights.n(),
        args.out.f32() + begin * args.out_stride);
  }
  PackRows({.a = args.a.f32() + first,
            .a_stride = args.a_stride,
            .row_order = args.row_order,
            .top_k = args.top_k});
  Multiply(args.out_stride);
}

void GemmRunner::Clear(const Apart& apart) {
  products_.clear();
  apart_ = apart;
  num_rows_ = num_tiles_ = num_tasks_ = num_bytes_ = num_multiplies_ = 0;
}

void GemmRunner::Add(int64_t m, DType a_rounded_to, const Panels& w, const float* bias, float* out,
                     int32_t segments) {
  if (m == 0) return;
  const bool is_bf16 = w.dtype() == DType::kBF16 && a_rounded_to == DType::kBF16;
  const GemmTiling& tiling = is_bf16 ? set_->bf16_tiling : set_->tiling;
  const int64_t multiple = std::max<int64_t>(tiling.bf16_group, 1);
  const int64_t k = w.padded_k() / apart_.count;
  Product p{.tiles = {.m = m,
                      .num_tiles = CeilDiv(m, tiling.max_tile_rows),
                      .tile_rows = std::min(m, tiling.max_tile_rows),
                      .padded_k = CeilDiv(k, multiple) * multiple,
                      .bf16_group = tiling.bf16_group},
            .first_row = num_rows_,
            .first_tile = num_tiles_,
            .first_task = num_tasks_,
            .first_byte = num_bytes_,
            .tiles_each = std::max<int64_t>(1, kGemmRows / tiling.max_tile_rows),
            .weights = w,
            .bias = bias,
            .out = out,
            .segments = segments};
  const int64_t multiplies = m * w.n() * w.k();
  const bool small = multiplies < kInlineProducts;
  // Weights that pass by once are read through, those of many rows segment by segment.
  p.segments_each = p.tiles.num_tiles == 1 ? apart_.count : 1;
  const int64_t row_blocks = CeilDiv(p.tiles.num_tiles, p.tiles_each);
  // Fewer panels than is best if threads would have nothing to do.
  const int64_t share = CeilDiv(row_blocks * w.num_panels(), pool_->num_threads() * 4);
  const int64_t most =
      p.tiles.num_tiles > 1 ? tiling.panels : std::max<int64_t>(1, kStreamBytes / w.panel_stride());
  p.panels_each = small ? w.num_panels() : std::min(share, most);
  p.panel_blocks = CeilDiv(w.num_panels(), p.panels_each);
  num_rows_ += m;
  num_tiles_ += p.tiles.num_tiles;
  p.tasks_each = row_blocks * p.panel_blocks;
  p.segment_bytes = CeilDiv(p.tiles.size_bytes(), kLineBytes) * kLineBytes;
  num_tasks_ += p.tasks_each * (apart_.count / p.segments_each);
  num_bytes_ += p.segment_bytes * apart_.count;
  num_multiplies_ += multiplies;
  products_.push_back(p);
}

const GemmRunner::Product& GemmRunner::ProductOf(int64_t index, int64_t Product::*first) const {
  const auto after =
      std::upper_bound(products_.begin(), products_.end(), index,
                       [&](int64_t value, const Product& p) { return value < p.*first; });
  return *std::prev(after);
}

void GemmRunner::PackRows(const Rows& rows) {
  if (products_.empty()) return;
  const auto bytes = static_cast<size_t>(num_bytes_);
  if (activations_.size() < bytes + kLineBytes) activations_.resize(bytes + kLineBytes);
  void* aligned = activations_.data();
  size_t space = activations_.size();
  std::align(kLineBytes, bytes, aligned, space);
  for (Product& p : products_) p.tiles.data = static_cast<std::byte*>(aligned) + p.first_byte;
  const int64_t k = products_[0].weights.k() / apart_.count;
  const int64_t tile_floats =
      std::max(set_->tiling.max_tile_rows, set_->bf16_tiling.max_tile_rows) * k;
  if (rows.row_order != nullptr) {
    const auto floats = static_cast<size_t>(pool_->num_threads() * tile_floats);
    if (gathered_.size() < floats) gathered_.resize(floats);
  }
  const bool small = num_rows_ * k * apart_.count < kInlineElements;
  ForTasks(num_tiles_ * apart_.count, small, [&](int64_t index, int thread) {
    const Product& p = ProductOf(index / apart_.count, &Product::first_tile);
    const int64_t tile = index / apart_.count - p.first_tile, segment = index % apart_.count;
    const float* const columns = rows.a + segment * k;
    RowTiles one = p.TilesOf(segment);
    if (rows.row_order == nullptr) {
      const float* a = columns + p.first_row * rows.a_stride;
      return set_->pack_activations(a, rows.a_stride, k, one, tile);
    }
    // A tile by itself is packed as it is among others.
    one.data = one.Tile(tile);
    one.m = p.tiles.Begin(tile + 1) - p.tiles.Begin(tile);
    one.num_tiles = 1;
    float* gathered = gathered_.data() + thread * tile_floats;
    for (int64_t r = 0; r < one.m; ++r) {
      const int64_t from = rows.row_order[p.first_row + p.tiles.Begin(tile) + r] / rows.top_k;
      std::memcpy(gathered + r * k, columns + from * rows.a_stride, k * sizeof(float));
    }
    set_->pack_activations(gathered, k, k, one, 0);
  });
}

void GemmRunner::Multiply(int64_t out_stride) {
  for (const Product& p : products_) {
    if (p.segments == 1 || p.tiles.num_tiles == 1) continue;
    pending_.resize(pool_->num_threads() * kPendingFloats);
  }
  ForTasks(num_tasks_, num_multiplies_ < kInlineProducts, [&](int64_t index, int thread) {
    RunTask(index, out_stride,
            pending_.empty() ? nullptr : pending_.data() + thread * kPendingFloats);
  });
}

// The weights of a product pass by once per block of rows, in the order in which they lie.
void GemmRunner::RunTask(int64_t index, int64_t out_stride, float* pending) {
  const Product& p = ProductOf(index, &Product::first_task);
  const int64_t task = (index - p.first_task) % p.tasks_each;
  const int64_t segment = (index - p.first_task) / p.tasks_each * p.segments_each;
  const int64_t tile = task / p.panel_blocks * p.tiles_each;
  const int64_t first = task % p.panel_blocks * p.panels_each;
  const int64_t end = std::min(first + p.panels_each, p.weights.num_panels());
  const int64_t panels_each = p.segments_each == 1 ? p.panels_each : 1;
  const int64_t k = p.weights.k() / apart_.count;
  for (int64_t panel = first; panel < end; panel += panels_each) {
    for (int64_t s = segment; s < segment + p.segments_each; ++s) {
      const RowTiles tiles = p.TilesOf(s);
      const Panels weights = p.weights.Columns(s * k, k);
      set_->weight_gemm({.a = &tiles,
                         .tile_begin = tile,
                         .tile_end = std::min(tile + p.tiles_each, tiles.num_tiles),
                         .weights = &weights,
                         .panel_begin = panel,
                         .panel_end = std::min(panel + panels_each, end),
                         .bias = p.bias,
                         .out = p.out + s * apart_.out_stride,
                         .out_stride = out_stride,
                         .segments = p.segments,
                         .pending = pending});
    }
  }
}

void GemmRunner::ForTasks(int64_t num_tasks, bool small, ThreadPool::Body body) {
  if (!small) return pool_->ParallelFor(num_tasks, body);
  for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
}

}  // namespace baton
