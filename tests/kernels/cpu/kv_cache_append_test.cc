// AttentionWithKvCache: what is rotated, appended and then seen.
#include "kernels/cpu/kv_cache_append.h"

#include <functional>

#include "tests/kernels/attention_problem.h"
#include "tests/kernels/library_cases.h"

namespace baton {
namespace {

constexpr int32_t kHeads = 6, kKvHeads = 2, kDim = 16, kCapacity = 48, kBlockSize = 8;
constexpr int64_t kWidth = int64_t{kKvHeads} * kDim;

struct Shapes {
  CacheLayout layout = CacheLayout::kNhd;
  DType kv = DType::kF32;
  bool paged = false;
  bool batch_idx = false;
  bool leftpad = false;
  int32_t rotary_dim = 0;
  bool interleaved = false;
  bool alibi = false;
  int64_t num_queries = 3;
  int64_t num_new = 3;
  std::vector<int32_t> lens = {0, 5, 20, 45};
  bool one_length = false;  // The first of lens, which are all equal.
  ScoreOptions scores = {};
};

// A cache of 0xFF but for the rows that sequences have, and what the operator should make of it.
class KvCacheProblem {
 public:
  explicit KvCacheProblem(const Shapes& shapes) : s(shapes), num_seqs(std::ssize(s.lens)) {
    q = RandomFloats(1, num_seqs * s.num_queries * kHeads * kDim);
    new_k = RandomFloats(2, num_seqs * s.num_new * kWidth);
    new_v = RandomFloats(3, num_seqs * s.num_new * kWidth);
    cos = RandomFloats(4, int64_t{kCapacity} * kDim / 2);
    sin = RandomFloats(5, int64_t{kCapacity} * kDim / 2);
    slopes = RandomFloats(6, kHeads);
    for (float& x : slopes) x = std::fabs(x);
    block_size = s.paged ? kBlockSize : kCapacity;
    max_blocks = kCapacity / kBlockSize;
    num_blocks = s.paged ? num_seqs * max_blocks + 2 : num_seqs + 2;
    for (int64_t i = 0; i < num_seqs; ++i) {
      batch_idx.push_back(static_cast<int32_t>(num_blocks - 1 - i));
      leftpad.push_back(s.leftpad ? s.lens[i] / 2 : 0);
      // Only blocks that are needed have an entry.
      for (int64_t b = 0; b < max_blocks; ++b) {
        const bool needed =
            b * kBlockSize < s.lens[i] + s.num_new && (b + 1) * kBlockSize > leftpad[i];
        table.push_back(needed ? static_cast<int32_t>(num_blocks - 1 - i * max_blocks - b) : -1);
      }
    }
    k_cache.assign(num_blocks * block_size * kWidth * SizeOf(s.kv), std::byte{0xFF});
    v_cache = k_cache;
    const std::vector<float> k = RandomFloats(7, num_seqs * kCapacity * kWidth);
    const std::vector<float> v = RandomFloats(8, num_seqs * kCapacity * kWidth);
    for (int64_t i = 0; i < num_seqs; ++i) {
      for (int64_t row = leftpad[i]; row < s.lens[i]; ++row) {
        Put(i, row, &k[(i * kCapacity + row) * kWidth], &v[(i * kCapacity + row) * kWidth], k_cache,
            v_cache);
      }
    }
    expected_k = k_cache;
    expected_v = v_cache;
    for (int64_t i = 0; i < num_seqs; ++i) {
      for (int64_t n = 0; n < s.num_new; ++n) {
        const float* from = new_k.data() + (i * s.num_new + n) * kWidth;
        std::vector<float> row(from, from + kWidth);
        for (int64_t h = 0; h < kKvHeads; ++h) Rotate(&row[h * kDim], s.lens[i] + n);
        Put(i, s.lens[i] + n, row.data(), &new_v[(i * s.num_new + n) * kWidth], expected_k,
            expected_v);
      }
    }
  }

  AttentionWithKvCacheArgs Args(float* out, float* lse) {
    AttentionWithKvCacheArgs args{.q = q.data(),
                                  .num_heads = kHeads,
                                  .num_seqs = num_seqs,
                                  .num_queries = s.num_queries,
                                  .k = s.num_new > 0 ? new_k.data() : nullptr,
                                  .v = s.num_new > 0 ? new_v.data() : nullptr,
                                  .num_new = s.num_new,
                                  .k_cache = Plane(k_cache),
                                  .v_cache = Plane(v_cache),
                                  .cache_seqlens = s.one_length ? nullptr : s.lens.data(),
                                  .cache_seqlen = s.one_length ? s.lens[0] : -1,
                                  .cache_batch_idx = s.batch_idx ? batch_idx.data() : nullptr,
                                  .cache_leftpad = s.leftpad ? leftpad.data() : nullptr,
                                  .block_table = s.paged ? table.data() : nullptr,
                                  .max_blocks = s.paged ? max_blocks : 0,
                                  .scores = s.scores,
                                  .out = out,
                                  .lse = lse};
    if (s.alibi) args.scores.alibi_slopes = slopes.data();
    if (s.rotary_dim > 0) {
      args.rotary_cos = cos.data();
      args.rotary_sin = sin.data();
      args.num_rotary_positions = kCapacity;
      args.rotary_dim = s.rotary_dim;
      args.rotary_interleaved = s.interleaved;
    }
    return args;
  }

  // Element d of a row as the cache returns it, from the definition of the layouts.
  double Read(const std::vector<std::byte>& cache, bool is_key, int64_t seq, int64_t row,
              int64_t head, int64_t d) {
    const int64_t at = At(is_key, seq, row, head, d);
    if (s.kv == DType::kF32) return LoadOne<DType::kF32>(cache.data(), at);
    if (s.kv == DType::kBF16) return LoadOne<DType::kBF16>(cache.data(), at);
    return DecodeFp8(s.kv, static_cast<uint8_t>(cache[at])) * scale;
  }

  // Compares with a double loop over the cache as it should have become.
  void Check(const std::vector<float>& out, const std::vector<float>& lse) {
    std::vector<double> exact;
    for (int64_t i = 0; i < num_seqs; ++i) {
      for (int64_t n = 0; n < s.num_queries; ++n) {
        for (int64_t h = 0; h < kHeads; ++h) {
          const double got = lse[h * num_seqs * s.num_queries + i * s.num_queries + n];
          const double expected = Row(i, n, h, exact);
          if (std::isinf(expected)) {
            EXPECT_EQ(got, -INFINITY);
          } else {
            EXPECT_NEAR(got, expected, 2e-5);
          }
        }
      }
    }
    ExpectAccurate(out, std::vector<float>(exact.begin(), exact.end()), exact, "with KV cache");
  }

  int64_t out_size() const { return num_seqs * s.num_queries * kHeads * kDim; }

  const Shapes s;
  const int64_t num_seqs;
  float scale = 0.5f;
  int64_t block_size = 0, max_blocks = 0, num_blocks = 0;
  std::vector<float> q, new_k, new_v, cos, sin, slopes;
  std::vector<int32_t> batch_idx, leftpad, table;
  std::vector<std::byte> k_cache, v_cache, expected_k, expected_v;

 private:
  CachePlane Plane(std::vector<std::byte>& bytes) {
    return {.data = bytes.data(),
            .dtype = s.kv,
            .layout = s.layout,
            .num_blocks = num_blocks,
            .num_heads = kKvHeads,
            .block_size = static_cast<int32_t>(block_size),
            .dim = kDim,
            .block_stride = block_size * kWidth,
            .scales = &scale,
            .num_scales = IsFp8(s.kv) ? 1 : 0};
  }

  int64_t At(bool is_key, int64_t seq, int64_t row, int64_t head, int64_t d) {
    const int64_t block = s.paged       ? table[seq * max_blocks + row / block_size]
                          : s.batch_idx ? batch_idx[seq]
                                        : seq;
    return block * block_size * kWidth +
           PlaceInBlock(Plane(k_cache), is_key, head, row % block_size, d, 0);
  }

  void Put(int64_t seq, int64_t row, const float* k, const float* v, std::vector<std::byte>& to_k,
           std::vector<std::byte>& to_v) {
    for (const bool is_key : {true, false}) {
      std::vector<float> values(is_key ? k : v, (is_key ? k : v) + kWidth);
      if (IsFp8(s.kv)) {
        for (float& x : values) x /= scale;
      }
      const std::vector<std::byte> bytes = Encode(s.kv, values);
      for (int64_t e = 0; e < kWidth; ++e) {
        const int64_t at = At(is_key, seq, row, e / kDim, e % kDim) * SizeOf(s.kv);
        std::memcpy(&(is_key ? to_k : to_v)[at], &bytes[e * SizeOf(s.kv)], SizeOf(s.kv));
      }
    }
  }

  void Rotate(float* x, int64_t position) const {
    const int64_t half = s.rotary_dim / 2;
    for (int64_t i = 0; i < half; ++i) {
      float& a = x[s.interleaved ? 2 * i : i];
      float& b = x[s.interleaved ? 2 * i + 1 : half + i];
      const float c = cos[position * half + i], n = sin[position * half + i];
      const float first = std::fma(a, c, -(b * n));
      b = std::fma(b, c, a * n);
      a = first;
    }
  }

  // Appends the output of one row to `out` and returns its LSE.
  double Row(int64_t seq, int64_t i, int64_t head, std::vector<double>& out) {
    const bool advances =
        s.scores.causal || s.scores.window_left >= 0 || s.scores.window_right >= 0;
    const float* from = &q[((seq * s.num_queries + i) * kHeads + head) * kDim];
    std::vector<float> query(from, from + kDim);
    Rotate(query.data(), s.lens[seq] + (advances ? i : 0));
    const int64_t end = s.lens[seq] + s.num_new;
    const int64_t position = end - s.num_queries + i;  // As a row of the cache.
    std::vector<std::pair<int64_t, double>> seen;
    double sum = 0;
    for (int64_t j = leftpad[seq]; j < end; ++j) {
      if (s.scores.causal && j > position) continue;
      if (s.scores.window_left >= 0 && j < position - s.scores.window_left) continue;
      if (s.scores.window_right >= 0 && j > position + s.scores.window_right) continue;
      double x = 0;
      for (int64_t d = 0; d < kDim; ++d) {
        x += double{query[d]} * Read(expected_k, true, seq, j, head / 3, d);
      }
      x /= 4;  // The root of kDim.
      if (s.scores.softcap > 0) x = s.scores.softcap * std::tanh(x / s.scores.softcap);
      if (s.alibi) x -= double{slopes[head]} * static_cast<double>(std::abs(position - j));
      seen.push_back({j, std::exp(x)});
      sum += seen.back().second;
    }
    for (int64_t d = 0; d < kDim; ++d) {
      double value = 0;
      for (const auto& [j, p] : seen) {
        value += p / sum * Read(expected_v, false, seq, j, head / 3, d);
      }
      out.push_back(value);
    }
    return std::log(sum);
  }
};

class KvCacheAppendTest : public LibraryTest {
 protected:
  void Run(const Shapes& shapes, int32_t num_splits = 0) {
    KvCacheProblem p(shapes);
    GuardedFloats out(p.out_size()), lse(p.out_size() / kDim);
    AttentionWithKvCacheArgs args = p.Args(out.data(), lse.data());
    args.num_splits = num_splits;
    const absl::Status status = kernels_->AttentionWithKvCache(args);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
    EXPECT_TRUE(p.k_cache == p.expected_k && p.v_cache == p.expected_v) << "other bytes written";
    p.Check(out.values(), lse.values());
  }
};

TEST_P(KvCacheAppendTest, AppendsInPlaceToContiguousAndPagedCachesOfEveryLayout) {
  for (const auto layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    for (const auto kv : {DType::kF32, DType::kBF16, DType::kFp8E4M3}) {
      for (const bool paged : {false, true}) {
        for (const bool leftpad : {false, true}) {
          SCOPED_TRACE(static_cast<int>(layout) * 100 + static_cast<int>(kv) * 10 + paged);
          Run({.layout = layout,
               .kv = kv,
               .paged = paged,
               .batch_idx = !paged,
               .leftpad = leftpad});
        }
      }
    }
  }
}

TEST_P(KvCacheAppendTest, RotatesNewKeysAndQueriesByTheirPositions) {
  for (const bool interleaved : {false, true}) {
    for (const int32_t rotary_dim : {16, 10, 2}) {
      for (const bool causal : {true, false}) {
        for (const int32_t left : {-1, 4}) {
          SCOPED_TRACE(rotary_dim * 100 + interleaved * 10 + causal);
          Run({.leftpad = true,
               .rotary_dim = rotary_dim,
               .interleaved = interleaved,
               .scores = {.causal = causal, .window_left = left}});
        }
      }
    }
  }
}

TEST_P(KvCacheAppendTest, WindowSoftcapAndAlibiActOnTheLogicalPositions) {
  for (const bool leftpad : {false, true}) {
    for (const int32_t splits : {0, 1, 4}) {
      Run({.leftpad = leftpad, .alibi = true, .scores = {.softcap = 5, .window_left = 9}}, splits);
    }
  }
}

TEST_P(KvCacheAppendTest, WindowsReachToTheRightOverWhatIsAppended) {
  for (const bool paged : {false, true}) {
    for (const int32_t left : {-1, 0, 4}) {
      for (const int32_t right : {0, 1, 2, 7}) {
        for (const int32_t rotary_dim : {0, 10}) {
          SCOPED_TRACE(paged * 1000 + rotary_dim * 100 + left * 10 + right);
          Run({.paged = paged,
               .leftpad = true,
               .rotary_dim = rotary_dim,
               .num_queries = 4,
               .lens = {0, 5, 20, 44},
               .scores = {.causal = false, .window_left = left, .window_right = right}});
        }
      }
    }
  }
  // A causal mask sees nothing to the right, whatever the window says.
  Run({.scores = {.causal = true, .window_right = 2}});
}

TEST_P(KvCacheAppendTest, LengthsMayBeOneNumber) {
  for (const bool paged : {false, true}) {
    for (const int32_t length : {0, 7, 8, 45}) {
      Run({.paged = paged,
           .leftpad = true,
           .rotary_dim = 10,
           .lens = std::vector<int32_t>(4, length),
           .one_length = true});
    }
  }
}

TEST_P(KvCacheAppendTest, LengthsAreEitherOneNumberOrOneEach) {
  KvCacheProblem p(Shapes{.lens = {5, 5}, .one_length = true});
  GuardedFloats out(p.out_size()), lse(p.out_size() / kDim);
  const auto refused = [&](auto change, const std::string& message) {
    AttentionWithKvCacheArgs args = p.Args(out.data(), lse.data());
    change(args);
    const absl::Status status = kernels_->AttentionWithKvCache(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
    EXPECT_TRUE(p.k_cache != p.expected_k) << "nothing is appended";
  };
  refused([](auto& a) { a.cache_seqlen = -1; }, "cache_seqlens = null: must point to data");
  refused([](auto& a) { a.cache_seqlen = -2; }, "cache_seqlen = -2: must be at least 0");
  refused([](auto& a) { a.cache_seqlen = 46; },
          "cache_seqlen = 46: must be in [0, 45]: a capacity of 48 with num_new = 3");
  refused([&](auto& a) { a.cache_seqlens = p.s.lens.data(); },
          "cache_seqlens is given: must be null with cache_seqlen");
}

TEST_P(KvCacheAppendTest, NumbersOfQueriesAndNewTokensAreIndependent) {
  Run({.num_queries = 1, .num_new = 3});
  Run({.num_queries = 5, .num_new = 1});
  Run({.num_queries = 4, .num_new = 0});
  Run({.num_queries = 0, .num_new = 2});
}

TEST_P(KvCacheAppendTest, OneTokenStaysInABlockOrOpensTheNext) {
  // Key lengths 30, 32 and 70 in blocks of 32.
  const std::vector<int32_t> lens = {30, 32, 70};
  const std::vector<int32_t> table = {2, -1, -1, -1, 0, 1, -1, -1, 3, 5, 6, -1};
  const int64_t block = 32 * 8;
  std::vector<float> k_cache(7 * block, 0.5f), v_cache(7 * block, 0.5f), k(3 * 8, 2), v(3 * 8, 3);
  std::vector<float> q(3 * 8, 1), out(3 * 8);
  CachePlane plane{.data = reinterpret_cast<std::byte*>(k_cache.data()),
                   .num_blocks = 7,
                   .num_heads = 1,
                   .block_size = 32,
                   .dim = 8,
                   .block_stride = block};
  CachePlane v_plane = plane;
  v_plane.data = reinterpret_cast<std::byte*>(v_cache.data());
  ASSERT_TRUE(kernels_
                  ->AttentionWithKvCache({.q = q.data(),
                                          .num_heads = 1,
                                          .num_seqs = 3,
                                          .num_queries = 1,
                                          .k = k.data(),
                                          .v = v.data(),
                                          .num_new = 1,
                                          .k_cache = plane,
                                          .v_cache = v_plane,
                                          .cache_seqlens = lens.data(),
                                          .block_table = table.data(),
                                          .max_blocks = 4,
                                          .out = out.data()})
                  .ok());
  std::vector<float> expected(7 * block, 0.5f);
  for (const int64_t slot : {2 * 32 + 30, 1 * 32 + 0, 6 * 32 + 6}) {
    std::fill_n(expected.begin() + slot * 8, 8, 2.0f);
  }
  EXPECT_EQ(k_cache, expected);
}

TEST_P(KvCacheAppendTest, BeyondTheCapacityNothingIsWritten) {
  using Break = std::function<void(AttentionWithKvCacheArgs&, KvCacheProblem&)>;
  static const int32_t beyond[] = {0, 5, 20, 46};
  static const int32_t twice[] = {0, 1, 1, 2};
  static const int32_t pad[] = {0, 6, 0, 0};
  const std::pair<Break, std::string> cases[] = {
      {[](auto& a, auto&) { a.cache_seqlens = beyond; },
       "cache_seqlens[3] = 46: must be in [0, 45]: a capacity of 48 with num_new = 3"},
      {[](auto& a, auto&) { a.cache_batch_idx = beyond; }, "cache_batch_idx[2] = 20: must be in"},
      {[](auto& a, auto&) {
         static const int32_t same[] = {5, 5, 20, 45};
         a.cache_seqlens = same;
         a.cache_batch_idx = twice;
         static const int32_t equal[] = {0, 5, 5, 45};
         a.cache_seqlens = equal;
       },
       "cache_batch_idx[2] = 1: must be a block whose row 5 no other new token takes"},
      {[](auto& a, auto&) {
         a.cache_batch_idx = nullptr;
         a.k_cache.num_blocks = a.v_cache.num_blocks = 3;
       },
       "num_seqs = 4: must be at most k_cache.num_blocks = 3 without cache_batch_idx"},
      {[](auto& a, auto&) { a.num_new = 49; },
       "num_new = 49: must be at most the capacity of 48 of a sequence"},
      {[](auto& a, auto&) { a.cache_leftpad = pad; }, "cache_leftpad[1] = 6: must be in [0, 5]"},
      {[](auto& a, auto&) { a.v = nullptr; }, "v = null"},
      {[](auto& a, auto&) { a.num_new = 0; }, "k is given: must be null with num_new = 0"},
      {[](auto& a, auto&) { a.num_splits = -1; }, "num_splits = -1: must be at least 0"},
      {[](auto& a, auto&) { a.num_heads = 7; }, "num_heads = 7: must be a multiple"},
      {[](auto& a, auto&) { a.num_rotary_positions = 47; },
       "num_rotary_positions = 47: must be at least 48 for sequence 3"},
      {[](auto& a, auto&) { a.rotary_dim = 18; }, "rotary_dim = 18: must be even and at most"},
      {[](auto& a, auto&) { a.rotary_sin = nullptr; }, "rotary_sin = null"},
      {[](auto& a, auto& p) {
         a.block_table = p.table.data();
         a.max_blocks = 2;
         a.cache_batch_idx = nullptr;
       },
       "block_table["},
      {[](auto& a, auto& p) { a.block_table = p.table.data(); },
       "cache_batch_idx is given: must be null with a block_table"},
      {[](auto& a, auto&) { a.num_queries = INT32_MAX; }, "num_queries = 2147483647: must be"},
  };
  for (const auto& [spoil, message] : cases) {
    KvCacheProblem p({.batch_idx = true, .rotary_dim = 16});
    GuardedFloats out(p.out_size()), lse(p.out_size() / kDim);
    AttentionWithKvCacheArgs args = p.Args(out.data(), lse.data());
    const std::vector<std::byte> before = p.k_cache;
    spoil(args, p);
    const absl::Status status = kernels_->AttentionWithKvCache(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_NE(std::string(status.message()).find(message), std::string::npos) << status;
    EXPECT_EQ(p.k_cache, before) << message;
    for (const float x : out.values()) ASSERT_EQ(x, GuardedFloats::kCanary);
  }
}

TEST_P(KvCacheAppendTest, AnAppendToAnUnallocatedBlockIsRefused) {
  KvCacheProblem p({.paged = true});
  GuardedFloats out(p.out_size()), lse(p.out_size() / kDim);
  const AttentionWithKvCacheArgs args = p.Args(out.data(), lse.data());
  p.table[1 * p.max_blocks] = -1;
  const absl::Status status = kernels_->AttentionWithKvCache(args);
  EXPECT_NE(std::string(status.message()).find("block_table[1][0] = -1: must be in [0, 26)"),
            std::string::npos)
      << status;
}

TEST_P(KvCacheAppendTest, TwoNewTokensOfOneSlotAreRefusedByTheirTableEntry) {
  KvCacheProblem p({.paged = true, .lens = {0, 0}});
  GuardedFloats out(p.out_size()), lse(p.out_size() / kDim);
  const AttentionWithKvCacheArgs args = p.Args(out.data(), lse.data());
  p.table[1 * p.max_blocks] = p.table[0];
  const std::string entry = "block_table[1][0] = " + std::to_string(p.table[0]);
  EXPECT_EQ(std::string(kernels_->AttentionWithKvCache(args).message()),
            entry + ": must be a block whose row 0 no other new token takes");
}

BATON_FOR_EACH_LIBRARY(KvCacheAppendTest);

}  // namespace
}  // namespace baton
