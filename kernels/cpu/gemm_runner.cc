#include "kernels/cpu/gemm_runner.h"

#include <algorithm>
#include <cstring>

namespace baton {
namespace {

// Below this many elements (or products) waking the pool costs more than it saves.
constexpr int64_t kInlineElements = 1 << 13;
constexpr int64_t kInlineProducts = 1 << 19;
// Rows of a matrix product whose activations stay in the last cache while panels pass by.
constexpr int64_t kGemmRows = 512;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

void GemmRunner::Run(const GemmArgs& args) {
  Clear();
  Add(args.m, args.a_rounded_to, args.weights, args.bias, args.out);
  PackRows({.a = args.a, .a_stride = args.a_stride});
  Multiply(args.out_stride);
}

void GemmRunner::Run(const ExpertGemmArgs& args) {
  Clear();
  for (int64_t e = 0; e < args.num_experts; ++e) {
    const int64_t begin = args.expert_offsets[e];
    const PackedMatrix* weights = args.weights + e;
    Add(args.expert_offsets[e + 1] - begin, args.a_rounded_to, weights,
        args.bias == nullptr ? nullptr : args.bias + e * weights->n(),
        args.out + begin * args.out_stride);
  }
  PackRows(
      {.a = args.a, .a_stride = args.a_stride, .row_order = args.row_order, .top_k = args.top_k});
  Multiply(args.out_stride);
}

void GemmRunner::Clear() {
  products_.clear();
  num_rows_ = num_tiles_ = num_tasks_ = num_multiplies_ = 0;
}

void GemmRunner::Add(int64_t m, DType a_rounded_to, const PackedMatrix* weights, const float* bias,
                     float* out) {
  if (m == 0) return;
  const PackedMatrix& w = *weights;
  Product p{.tiles = {.m = m,
                      .num_tiles = CeilDiv(m, set_->max_tile_rows),
                      .padded_k = w.padded_k(),
                      .bf16_pairs = set_->has_bf16_dot && w.dtype() == DType::kBF16 &&
                                    a_rounded_to == DType::kBF16},
            .first_row = num_rows_,
            .first_tile = num_tiles_,
            .first_task = num_tasks_,
            .weights = weights,
            .bias = bias,
            .out = out};
  const int64_t multiplies = m * w.n() * w.k();
  const bool small = multiplies < kInlineProducts;
  p.panels_each = small ? w.num_panels() : p.tiles.num_tiles == 1 ? 1 : 2;
  p.panel_blocks = CeilDiv(w.num_panels(), p.panels_each);
  num_rows_ += m;
  num_tiles_ += p.tiles.num_tiles;
  num_tasks_ += CeilDiv(p.tiles.num_tiles, TilesEach()) * p.panel_blocks;
  num_multiplies_ += multiplies;
  products_.push_back(p);
}

int64_t GemmRunner::TilesEach() const {
  return std::max<int64_t>(1, kGemmRows / set_->max_tile_rows);
}

const GemmRunner::Product& GemmRunner::ProductOf(int64_t index, int64_t Product::*first) const {
  const auto after =
      std::upper_bound(products_.begin(), products_.end(), index,
                       [&](int64_t value, const Product& p) { return value < p.*first; });
  return *std::prev(after);
}

void GemmRunner::PackRows(const Rows& rows) {
  if (products_.empty()) return;
  const auto bytes = static_cast<size_t>(num_rows_ * products_[0].tiles.row_bytes());
  if (activations_.size() < bytes) activations_.resize(bytes);
  for (Product& p : products_) {
    p.tiles.data = activations_.data() + p.first_row * p.tiles.row_bytes();
  }
  const int64_t k = products_[0].weights->k();
  const int64_t tile_floats = set_->max_tile_rows * k;
  if (rows.row_order != nullptr) {
    const auto floats = static_cast<size_t>(pool_->num_threads() * tile_floats);
    if (gathered_.size() < floats) gathered_.resize(floats);
  }
  ForTasks(num_tiles_, num_rows_ * k < kInlineElements, [&](int64_t index, int thread) {
    const Product& p = ProductOf(index, &Product::first_tile);
    const int64_t tile = index - p.first_tile;
    if (rows.row_order == nullptr) {
      const float* a = rows.a + p.first_row * rows.a_stride;
      return set_->pack_activations(a, rows.a_stride, k, p.tiles, tile);
    }
    // A tile by itself is packed as it is among others.
    RowTiles one = p.tiles;
    one.data = p.tiles.Tile(tile);
    one.m = p.tiles.Begin(tile + 1) - p.tiles.Begin(tile);
    one.num_tiles = 1;
    float* gathered = gathered_.data() + thread * tile_floats;
    for (int64_t r = 0; r < one.m; ++r) {
      const int64_t from = rows.row_order[p.first_row + p.tiles.Begin(tile) + r] / rows.top_k;
      std::memcpy(gathered + r * k, rows.a + from * rows.a_stride, k * sizeof(float));
    }
    set_->pack_activations(gathered, k, k, one, 0);
  });
}

void GemmRunner::Multiply(int64_t out_stride) {
  // The weights of a product pass by once per block of rows.
  ForTasks(num_tasks_, num_multiplies_ < kInlineProducts, [&](int64_t index, int) {
    const Product& p = ProductOf(index, &Product::first_task);
    const int64_t task = index - p.first_task;
    const int64_t tile = task / p.panel_blocks * TilesEach();
    const int64_t panel = task % p.panel_blocks * p.panels_each;
    set_->weight_gemm({.a = &p.tiles,
                       .tile_begin = tile,
                       .tile_end = std::min(tile + TilesEach(), p.tiles.num_tiles),
                       .weights = p.weights,
                       .panel_begin = panel,
                       .panel_end = std::min(panel + p.panels_each, p.weights->num_panels()),
                       .bias = p.bias,
                       .out = p.out,
                       .out_stride = out_stride});
  });
}

void GemmRunner::ForTasks(int64_t num_tasks, bool small, ThreadPool::Body body) {
  if (!small) return pool_->ParallelFor(num_tasks, body);
  for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
}

}  // namespace baton
