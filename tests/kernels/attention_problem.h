#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/kernel_fixture.h"

namespace baton {

// The value of an fp8 code from its definition (arXiv 2209.05433), by ldexp.
inline double DecodeFp8(DType dtype, uint8_t code) {
  const int mantissa_bits = dtype == DType::kFp8E4M3 ? 3 : 2;
  const int bias = dtype == DType::kFp8E4M3 ? 7 : 15;
  const double sign = code & 0x80 ? -1 : 1;
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  if (dtype == DType::kFp8E4M3 && (code & 0x7f) == 0x7f) return NAN;
  if (dtype == DType::kFp8E5M2 && exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

struct AttentionShapes {
  int32_t heads = 1, kv_heads = 1, dim = 8, block_size = 16;
  DType kv = DType::kF32;
  std::vector<std::pair<int32_t, int32_t>> sequences;  // (queries, keys)
  ScoreOptions scores = {};                            // alibi_slopes is set by `alibi`.
  bool alibi = false;
  float kv_scale = 0;           // K's, of fp8; 0: no scales. Per head: divided by 1 + head.
  float v_scale_of_k = 1.5f;    // V's, as a multiple.
  bool scale_per_head = false;  // K's.
  bool v_scale_per_head = false;
  DType compute = DType::kF32;  // q and the output are rounded to it.
  int32_t v_dim = 0;            // 0: dim.
  CacheLayout layout = CacheLayout::kHnd;
  int32_t row_gap = 0;  // Elements of 0xFF behind each row of a token's head; not PACKED.
  bool alibi_per_sequence = false;
  bool sinks = false;
  BlockSparsity sparsity = {};
  bool context_only = false;  // The cache lacks the K and V of the queries.
  std::vector<float> (*values)(uint64_t seed, int64_t n) = RandomFloats;
};

// Where element d lies in a block, from the definition of the layouts.
inline int64_t PlaceInBlock(const CachePlane& p, bool is_key, int64_t head, int64_t token,
                            int64_t d, int64_t row_gap) {
  const int64_t heads = p.num_heads, size = p.block_size, row = p.dim + row_gap;
  if (p.layout == CacheLayout::kHnd) return (head * size + token) * row + d;
  if (p.layout == CacheLayout::kNhd) return (token * heads + head) * row + d;
  if (!is_key) return (head * p.dim + d) * size + token;
  const int64_t x = 16 / SizeOf(p.dtype);
  return ((head * (p.dim / x) + d / x) * size + token) * x + d % x;
}

// Sequences in a cache whose blocks are a random permutation over three times what is needed. All
// other bytes are 0xFF (NaN in every dtype): other blocks, the end of a last block, and blocks that
// no query sees, whose table entries are -1.
class AttentionProblem {
 public:
  AttentionProblem(AttentionShapes s, uint64_t seed) : shape(std::move(s)) {
    if (shape.v_dim == 0) shape.v_dim = shape.dim;
    for (const auto& [queries, keys] : shape.sequences) {
      total_q += queries;
      key_base.push_back(total_k);
      total_k += keys;
      cu_q.push_back(static_cast<int32_t>(total_q));
      seq_lens.push_back(keys);
      const int64_t blocks = (keys + shape.block_size - 1) / shape.block_size;
      needed_blocks += blocks;
      max_blocks = std::max(max_blocks, blocks + 1);
    }
    q = Rounded(shape.compute, shape.values(seed, total_q * shape.heads * shape.dim));
    if (shape.alibi) {
      const size_t rows = shape.alibi_per_sequence ? shape.sequences.size() : 1;
      for (size_t s = 0; s < rows; ++s) {
        for (int32_t h = 0; h < shape.heads; ++h) {
          slopes.push_back(std::exp2(-8.0f * (h + 1) / shape.heads) / static_cast<float>(s + 1));
        }
      }
    }
    if (shape.sinks) {
      sinks = shape.values(seed + 4, shape.heads);
      for (float& x : sinks) x *= 4;
    }
    for (int32_t h = 0; h < (shape.scale_per_head ? shape.kv_heads : 1); ++h) {
      k_scales.push_back(shape.kv_scale / static_cast<float>(1 + h));
    }
    for (int32_t h = 0; h < (shape.v_scale_per_head ? shape.kv_heads : 1); ++h) {
      v_scales.push_back(shape.v_scale_of_k * shape.kv_scale / static_cast<float>(1 + h));
    }
    const int64_t spare = needed_blocks * BlockElements(shape.dim) < (1 << 23) ? 3 : 1;
    num_blocks = spare * needed_blocks + 1;
    std::vector<int32_t> order(num_blocks);
    std::iota(order.begin(), order.end(), 0);
    Random random(seed + 3);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
    MakeTable(order);
    FillCache(shape.values(seed + 1, total_k * shape.kv_heads * shape.dim), true, k, k_cache);
    FillCache(shape.values(seed + 2, total_k * shape.kv_heads * shape.v_dim), false, v, v_cache);
  }
  AttentionProblem(const AttentionProblem&) = delete;

  // The table without its padding: the entries of the last sequence first.
  struct RaggedTable {
    std::vector<int32_t> entries, starts;
  };
  RaggedTable Ragged() const {
    RaggedTable ragged;
    ragged.starts.resize(seq_lens.size());
    for (int64_t s = std::ssize(seq_lens) - 1; s >= 0; --s) {
      ragged.starts[s] = static_cast<int32_t>(ragged.entries.size());
      const int64_t blocks = (seq_lens[s] + shape.block_size - 1) / shape.block_size;
      const auto first = table.begin() + s * max_blocks;
      ragged.entries.insert(ragged.entries.end(), first, first + blocks);
    }
    return ragged;
  }

  VarlenAttentionArgs Args(float* out, float* lse = nullptr) {
    return {.q = q.data(),
            .q_stride = int64_t{shape.heads} * shape.dim,
            .num_heads = shape.heads,
            .num_seqs = std::ssize(shape.sequences),
            .cu_seqlens_q = cu_q.data(),
            .seq_lens = seq_lens.data(),
            .block_table = table.data(),
            .max_blocks = max_blocks,
            .k_cache = Plane(k_cache, true),
            .v_cache = Plane(v_cache, false),
            .scores = Scores(),
            .round_to = shape.compute,
            .out = out,
            .out_stride = int64_t{shape.heads} * shape.v_dim,
            .lse = lse,
            .lse_stride = total_q};
  }

  // Where every sequence has one query.
  PagedAttentionArgs PagedArgs(float* out, AttentionSplit split, float* lse = nullptr) {
    return {.q = q.data(),
            .q_stride = int64_t{shape.heads} * shape.dim,
            .num_heads = shape.heads,
            .num_seqs = std::ssize(shape.sequences),
            .block_tables = table.data(),
            .max_blocks = max_blocks,
            .seq_lens = seq_lens.data(),
            .max_seq_len = *std::max_element(seq_lens.begin(), seq_lens.end()),
            .k_cache = Plane(k_cache, true),
            .v_cache = Plane(v_cache, false),
            .scores = Scores(),
            .sparsity = shape.sparsity,
            .split = split,
            .round_to = shape.compute,
            .out = out,
            .out_stride = int64_t{shape.heads} * shape.v_dim,
            .lse = lse,
            .lse_stride = total_q};
  }

  // K and V as the cache returns them, as dense tensors instead.
  VarlenAttentionArgs DenseArgs(float* out, float* lse = nullptr) {
    VarlenAttentionArgs args = Args(out, lse);
    args.k_cache = args.v_cache = {};
    args.block_table = nullptr;
    args.max_blocks = 0;
    args.seq_lens = nullptr;
    cu_k = {0};
    for (const int32_t keys : seq_lens) cu_k.push_back(cu_k.back() + keys);
    args.dense = {.k = k.data(),
                  .k_stride = int64_t{shape.kv_heads} * shape.dim,
                  .v = v.data(),
                  .v_stride = int64_t{shape.kv_heads} * shape.v_dim,
                  .num_heads = shape.kv_heads,
                  .k_dim = shape.dim,
                  .v_dim = shape.v_dim,
                  .cu_seqlens_k = cu_k.data()};
    return args;
  }

  // With `context_only`: the K and V of the queries as dense tensors.
  PrefixAttentionArgs PrefixArgs(float* out, float* lse = nullptr) {
    const auto last_rows = [&](const std::vector<float>& from, int64_t width) {
      std::vector<float> rows;
      for (size_t s = 0; s < shape.sequences.size(); ++s) {
        const int64_t end = key_base[s] + seq_lens[s];
        const auto first = from.begin() + (end - shape.sequences[s].first) * width;
        rows.insert(rows.end(), first, from.begin() + end * width);
      }
      return rows;
    };
    new_k = last_rows(k, int64_t{shape.kv_heads} * shape.dim);
    new_v = last_rows(v, int64_t{shape.kv_heads} * shape.v_dim);
    const VarlenAttentionArgs args = Args(out, lse);
    return {.q = args.q,
            .q_stride = args.q_stride,
            .num_heads = args.num_heads,
            .k = new_k.data(),
            .k_stride = int64_t{shape.kv_heads} * shape.dim,
            .v = new_v.data(),
            .v_stride = int64_t{shape.kv_heads} * shape.v_dim,
            .num_seqs = args.num_seqs,
            .cu_seqlens_q = args.cu_seqlens_q,
            .seq_lens = args.seq_lens,
            .block_table = args.block_table,
            .max_blocks = args.max_blocks,
            .k_cache = args.k_cache,
            .v_cache = args.v_cache,
            .scores = args.scores,
            .round_to = args.round_to,
            .out = out,
            .out_stride = args.out_stride,
            .lse = lse,
            .lse_stride = args.lse_stride};
  }

  // All sequences begin with the first so many keys of the first, which are whole blocks.
  void SharePrefix(int64_t prefix_len) {
    const int64_t blocks = prefix_len / shape.block_size;
    for (size_t s = 1; s < shape.sequences.size(); ++s) {
      const int64_t keys = std::min<int64_t>(prefix_len, seq_lens[s]);
      std::copy_n(table.begin(), std::min(blocks, max_blocks), table.begin() + s * max_blocks);
      const auto copy = [&](std::vector<float>& rows, int64_t width) {
        std::copy_n(rows.begin(), keys * width, rows.begin() + key_base[s] * width);
      };
      copy(k, int64_t{shape.kv_heads} * shape.dim);
      copy(v, int64_t{shape.kv_heads} * shape.v_dim);
    }
  }

  // Whether query i of sequence s sees key j, from the definition of the mask.
  bool Sees(size_t s, int64_t i, int64_t j) const {
    const ScoreOptions& o = shape.scores;
    const int64_t p = i + seq_lens[s] - shape.sequences[s].first;
    if (o.causal && j > p) return false;
    if (o.window_left >= 0 && j < p - o.window_left) return false;
    if (o.window_right >= 0 && j > p + o.window_right) return false;
    return o.local_chunk == 0 || j / o.local_chunk == p / o.local_chunk;
  }

  // The same for a head of block-sparse decode.
  bool SparseSees(size_t s, int32_t head, int64_t j) const {
    const BlockSparsity& b = shape.sparsity;
    if (b.vert_stride <= 1) return true;
    const int64_t q_block = (seq_lens[s] - 1) / b.block_size;
    const int64_t k_block = j / b.block_size;
    const int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const int64_t offset = b.head_sliding_step >= 0
                               ? (b.tp_rank * shape.heads + head) * b.head_sliding_step + 1
                               : (b.tp_rank * shape.kv_heads + kv_head) * -b.head_sliding_step + 1;
    return (k_block + offset) % b.vert_stride == 0 || k_block > q_block - b.local_blocks;
  }

  // One row by a plain loop in T; with `low` the probabilities are rounded to the compute dtype.
  // Returns the LSE.
  template <typename T>
  T Row(size_t s, int64_t i, int32_t head, T* out, bool low = false) const {
    const int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const float* query = &q[((cu_q[s] + i) * shape.heads + head) * shape.dim];
    std::fill(out, out + shape.v_dim, T{0});
    std::vector<int64_t> seen;
    for (int64_t j = 0; j < seq_lens[s]; ++j) {
      if (Sees(s, i, j) && SparseSees(s, head, j)) seen.push_back(j);
    }
    if (seen.empty()) return -std::numeric_limits<T>::infinity();
    std::vector<T> p;
    T max = -std::numeric_limits<T>::infinity(), sum = 0;
    for (const int64_t j : seen) {
      const float* key = &k[((key_base[s] + j) * shape.kv_heads + kv_head) * shape.dim];
      T x = 0;
      for (int64_t e = 0; e < shape.dim; ++e) x += T{query[e]} * T{key[e]};
      x *= shape.scores.scale == 0 ? T{1} / std::sqrt(static_cast<T>(shape.dim))
                                   : T{shape.scores.scale};
      if (shape.scores.softcap > 0) x = shape.scores.softcap * std::tanh(x / shape.scores.softcap);
      const int64_t position = i + seq_lens[s] - shape.sequences[s].first;
      if (shape.alibi) {
        const float slope = slopes[(shape.alibi_per_sequence ? s * shape.heads : 0) + head];
        x -= T{slope} * static_cast<T>(std::abs(position - j));
      }
      max = std::max(max, x);
      p.push_back(x);
    }
    if (shape.sinks) {
      max = std::max(max, T{sinks[head]});
      sum = std::exp(T{sinks[head]} - max);
    }
    for (T& x : p) {
      x = std::exp(x - max);
      if (low) x = static_cast<T>(RoundTo(shape.compute, static_cast<float>(x)));
      sum += x;
    }
    for (size_t n = 0; n < seen.size(); ++n) {
      const float* value = &v[((key_base[s] + seen[n]) * shape.kv_heads + kv_head) * shape.v_dim];
      for (int64_t e = 0; e < shape.v_dim; ++e) out[e] += p[n] / sum * T{value[e]};
    }
    if (low) {
      for (int64_t e = 0; e < shape.v_dim; ++e) {
        out[e] = static_cast<T>(RoundTo(shape.compute, static_cast<float>(out[e])));
      }
    }
    return max + std::log(sum);
  }

  // Compares `rows` rows, or all, with the loops.
  void Check(const std::vector<float>& got, const std::vector<float>& lse, int64_t rows,
             const std::string& what) const {
    std::vector<float> ours, plain;
    std::vector<double> exact;
    Random random(total_q + total_k);
    const int64_t all = total_q * shape.heads;
    for (int64_t n = 0; n < std::min(rows, all); ++n) {
      const int64_t row = rows >= all ? n : static_cast<int64_t>(random.Below(all));
      const int64_t token = row / shape.heads;
      const auto head = static_cast<int32_t>(row % shape.heads);
      const size_t s = std::upper_bound(cu_q.begin(), cu_q.end(), token) - cu_q.begin() - 1;
      std::vector<double> e(shape.v_dim);
      std::vector<float> p(shape.v_dim);
      const double exact_lse = Row<double>(s, token - cu_q[s], head, e.data());
      const float plain_lse = Row<float>(s, token - cu_q[s], head, p.data(), true);
      exact.insert(exact.end(), e.begin(), e.end());
      plain.insert(plain.end(), p.begin(), p.end());
      const auto from = got.begin() + row * shape.v_dim;
      ours.insert(ours.end(), from, from + shape.v_dim);
      const float our_lse = lse[head * total_q + token];
      if (std::isinf(exact_lse)) {
        EXPECT_EQ(our_lse, -INFINITY) << what;
        EXPECT_EQ(std::vector<float>(from, from + shape.v_dim), std::vector<float>(shape.v_dim))
            << what;
      } else {
        EXPECT_LE(std::fabs(our_lse - exact_lse), 2 * std::fabs(plain_lse - exact_lse) +
                                                      1e-5 * (1 + std::fabs(exact_lse)) +
                                                      (shape.compute == DType::kF32 ? 0 : 4e-3))
            << what;
      }
    }
    if (!exact.empty()) ExpectAccurate(ours, plain, exact, what);
  }

  int64_t out_size() const { return total_q * shape.heads * shape.v_dim; }

  AttentionShapes shape;
  int64_t total_q = 0, total_k = 0, needed_blocks = 0, num_blocks = 0, max_blocks = 0;
  std::vector<int64_t> key_base;
  std::vector<float> q, k, v;       // k, v: [total_k, kv_heads, dim] as the cache returns them.
  std::vector<float> new_k, new_v;  // Of PrefixArgs.
  std::vector<float> slopes, k_scales, v_scales, sinks;
  std::vector<int32_t> cu_q{0}, cu_k, seq_lens, table;
  std::vector<std::byte> k_cache, v_cache;

 private:
  int64_t BlockElements(int64_t dim) const {
    return int64_t{shape.kv_heads} * shape.block_size * (dim + shape.row_gap);
  }

  ScoreOptions Scores() const {
    ScoreOptions scores = shape.scores;
    if (shape.alibi) scores.alibi_slopes = slopes.data();
    if (shape.alibi_per_sequence) scores.alibi_stride = shape.heads;
    if (shape.sinks) scores.sinks = sinks.data();
    return scores;
  }

  bool HasScales() const { return IsFp8(shape.kv) && shape.kv_scale > 0; }

  CachePlane Plane(std::vector<std::byte>& bytes, bool is_key) {
    const int32_t dim = is_key ? shape.dim : shape.v_dim;
    const std::vector<float>& scales = is_key ? k_scales : v_scales;
    CachePlane plane{.data = bytes.data(),
                     .dtype = shape.kv,
                     .layout = shape.layout,
                     .num_blocks = num_blocks,
                     .num_heads = shape.kv_heads,
                     .block_size = shape.block_size,
                     .dim = dim,
                     .block_stride = BlockElements(dim),
                     .scales = scales.data(),
                     .num_scales = HasScales() ? static_cast<int32_t>(scales.size()) : 0};
    if (shape.row_gap > 0) {
      const bool by_head = shape.layout == CacheLayout::kHnd;
      (by_head ? plane.token_stride : plane.head_stride) = dim + shape.row_gap;
    }
    return plane;
  }

  // Keys of sequence s that the cache holds.
  int64_t CachedKeys(size_t s) const {
    return seq_lens[s] - (shape.context_only ? shape.sequences[s].first : 0);
  }

  void MakeTable(const std::vector<int32_t>& order) {
    table.assign(shape.sequences.size() * max_blocks, -1);
    size_t next = 0;
    for (size_t s = 0; s < shape.sequences.size(); ++s) {
      const int32_t queries = shape.sequences[s].first;
      if (queries == 0) continue;
      for (int64_t j = 0; j < CachedKeys(s); ++j) {
        int32_t& block = table[s * max_blocks + j / shape.block_size];
        if (block >= 0) continue;
        bool seen = false;
        for (int32_t i = 0; i < queries && !seen; ++i) seen = Sees(s, i, j);
        bool by_some_head = false;
        for (int32_t h = 0; h < shape.heads && seen; ++h) by_some_head |= SparseSees(s, h, j);
        if (by_some_head) block = order[next++];
      }
    }
  }

  void FillCache(std::vector<float> values, bool is_key, std::vector<float>& read,
                 std::vector<std::byte>& cache) {
    const int64_t size = SizeOf(shape.kv);
    const int32_t dim = is_key ? shape.dim : shape.v_dim;
    cache.assign(num_blocks * BlockElements(dim) * size, std::byte{0xFF});
    const CachePlane plane = Plane(cache, is_key);
    const std::vector<float>& scales = is_key ? k_scales : v_scales;
    read = std::move(values);
    for (size_t s = 0; s < shape.sequences.size(); ++s) {
      for (int64_t i = 0; i < CachedKeys(s); ++i) {
        const int64_t block = table[s * max_blocks + i / shape.block_size];
        for (int64_t h = 0; h < shape.kv_heads; ++h) {
          float* row = &read[((key_base[s] + i) * shape.kv_heads + h) * dim];
          const float scale = HasScales() ? scales[scales.size() > 1 ? h : 0] : 1.0f;
          std::vector<float> scaled(row, row + dim);
          for (float& x : scaled) x /= scale;
          const std::vector<std::byte> bytes = Encode(shape.kv, scaled);
          for (int64_t d = 0; d < dim; ++d) {
            row[d] = IsFp8(shape.kv)
                         ? static_cast<float>(DecodeFp8(shape.kv, static_cast<uint8_t>(bytes[d]))) *
                               scale
                         : RoundTo(shape.kv, scaled[d]);
            if (block < 0) continue;
            const int64_t at =
                block * BlockElements(dim) +
                PlaceInBlock(plane, is_key, h, i % shape.block_size, d, shape.row_gap);
            std::memcpy(&cache[at * size], &bytes[d * size], size);
          }
        }
      }
    }
  }
};

}  // namespace baton
