#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/kernels/kernel_fixture.h"

namespace baton {
namespace {

struct Shape {
  int32_t heads, kv_heads, dim, block_size;
  DType dtype;
  std::vector<std::pair<int32_t, int32_t>> sequences;  // (queries, keys)
};

// Sequences in a cache whose blocks are a random permutation over three times what is needed; all
// other bytes, also inside a sequence's last block, are 0xFF (NaN).
class Problem {
 public:
  Problem(Shape s, uint64_t seed) : shape(std::move(s)) {
    Lengths();
    const int64_t width = int64_t{shape.kv_heads} * shape.dim;
    q = RandomFloats(seed, total_q * shape.heads * shape.dim);
    k = Rounded(shape.dtype, RandomFloats(seed + 1, total_k * width));
    v = Rounded(shape.dtype, RandomFloats(seed + 2, total_k * width));
    num_blocks = std::max<int64_t>(1, 3 * needed_blocks);
    std::vector<int32_t> order(num_blocks);
    std::iota(order.begin(), order.end(), 0);
    Random random(seed + 3);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
    FillCache(order);
  }

  VarlenAttentionArgs Args(float* out) {
    const CachePlane plane{.dtype = shape.dtype,
                           .num_blocks = num_blocks,
                           .num_heads = shape.kv_heads,
                           .block_size = shape.block_size,
                           .dim = shape.dim,
                           .block_stride = int64_t{shape.kv_heads} * shape.block_size * shape.dim};
    VarlenAttentionArgs args{.q = q.data(),
                             .q_stride = int64_t{shape.heads} * shape.dim,
                             .num_heads = shape.heads,
                             .num_seqs = static_cast<int64_t>(shape.sequences.size()),
                             .cu_seqlens_q = cu_q.data(),
                             .seq_lens = seq_lens.data(),
                             .block_table = table.data(),
                             .max_blocks = max_blocks,
                             .k_cache = plane,
                             .v_cache = plane,
                             .scores = {.scale = 1.0f / std::sqrt(static_cast<float>(shape.dim))},
                             .out = out,
                             .out_stride = int64_t{shape.heads} * shape.dim};
    args.k_cache.data = k_cache.data();
    args.v_cache.data = v_cache.data();
    return args;
  }

  template <typename T>
  std::vector<T> Loop() const {
    std::vector<T> out(total_q * shape.heads * shape.dim);
    int64_t key_base = 0;
    for (size_t s = 0; s < shape.sequences.size(); ++s) {
      for (int32_t i = cu_q[s]; i < cu_q[s + 1]; ++i) {
        const int32_t visible = seq_lens[s] - (cu_q[s + 1] - i) + 1;
        for (int32_t h = 0; h < shape.heads; ++h) LoopRow<T>(i, h, key_base, visible, out);
      }
      key_base += seq_lens[s];
    }
    return out;
  }

  int64_t out_size() const { return static_cast<int64_t>(q.size()); }

  Shape shape;
  int64_t total_q = 0, total_k = 0, needed_blocks = 0, num_blocks = 0, max_blocks = 0;
  std::vector<float> q, k, v;  // k, v: [total_k, kv_heads, dim]
  std::vector<int32_t> cu_q{0}, seq_lens, table;
  std::vector<std::byte> k_cache, v_cache;

 private:
  void Lengths() {
    for (const auto& [queries, keys] : shape.sequences) {
      total_q += queries;
      total_k += keys;
      cu_q.push_back(static_cast<int32_t>(total_q));
      seq_lens.push_back(keys);
      const int64_t blocks = (keys + shape.block_size - 1) / shape.block_size;
      needed_blocks += blocks;
      max_blocks = std::max(max_blocks, blocks + 1);
    }
  }

  void FillCache(const std::vector<int32_t>& order) {
    const int64_t size = SizeOf(shape.dtype);
    const int64_t bytes = num_blocks * shape.kv_heads * shape.block_size * shape.dim * size;
    k_cache.assign(bytes, std::byte{0xFF});
    v_cache.assign(bytes, std::byte{0xFF});
    table.assign(shape.sequences.size() * max_blocks, -1);
    const std::vector<std::byte> k_bytes = Encode(shape.dtype, k);
    const std::vector<std::byte> v_bytes = Encode(shape.dtype, v);
    int64_t key = 0;
    size_t next = 0;
    for (size_t s = 0; s < shape.sequences.size(); ++s) {
      for (int32_t i = 0; i < seq_lens[s]; ++i, ++key) {
        int32_t& block = table[s * max_blocks + i / shape.block_size];
        if (i % shape.block_size == 0) block = order[next++];
        for (int32_t h = 0; h < shape.kv_heads; ++h) {
          const int64_t to =
              ((int64_t{block} * shape.kv_heads + h) * shape.block_size + i % shape.block_size) *
              shape.dim * size;
          const int64_t from = (key * shape.kv_heads + h) * shape.dim * size;
          std::memcpy(&k_cache[to], &k_bytes[from], shape.dim * size);
          std::memcpy(&v_cache[to], &v_bytes[from], shape.dim * size);
        }
      }
    }
  }

  template <typename T>
  void LoopRow(int32_t token, int32_t head, int64_t key_base, int32_t visible,
               std::vector<T>& out) const {
    const int64_t d = shape.dim;
    const int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const float* query = &q[(int64_t{token} * shape.heads + head) * d];
    std::vector<T> p(visible);
    T max = -std::numeric_limits<T>::infinity(), sum = 0;
    for (int32_t j = 0; j < visible; ++j) {
      const float* key = &k[((key_base + j) * shape.kv_heads + kv_head) * d];
      for (int64_t e = 0; e < d; ++e) p[j] += T{query[e]} * T{key[e]};
      p[j] *= T{1} / std::sqrt(static_cast<T>(d));
      max = std::max(max, p[j]);
    }
    for (T& x : p) sum += x = std::exp(x - max);
    for (int32_t j = 0; j < visible; ++j) {
      const float* value = &v[((key_base + j) * shape.kv_heads + kv_head) * d];
      for (int64_t e = 0; e < d; ++e) {
        out[(int64_t{token} * shape.heads + head) * d + e] += p[j] / sum * T{value[e]};
      }
    }
  }
};

const std::vector<std::pair<int32_t, int32_t>> kMixed = {
    {5, 18}, {1, 37}, {0, 9}, {33, 40}, {1, 1}};
const std::vector<std::pair<int32_t, int32_t>> kLong = {{1, 1328}, {40, 1063}, {3, 514}};

class AttentionTest : public KernelTest {
 protected:
  std::vector<float> Run(Problem& p) {
    GuardedFloats out(p.out_size());
    const absl::Status status = kernels_->VarlenAttention(p.Args(out.data()));
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(out.GuardsIntact());
    return out.values();
  }
};

TEST_P(AttentionTest, AgreesWithDoubleLoopAndNeverReadsPoison) {
  const Shape grid[] = {
      {4, 4, 8, 16, DType::kF32, kMixed},    {8, 2, 10, 8, DType::kBF16, kMixed},
      {9, 3, 24, 32, DType::kF16, kMixed},   {6, 1, 32, 64, DType::kF32, kMixed},
      {6, 2, 64, 16, DType::kBF16, kMixed},  {5, 1, 80, 1, DType::kF32, kMixed},
      {4, 2, 96, 256, DType::kF16, kMixed},  {2, 1, 112, 128, DType::kF32, kMixed},
      {2, 2, 120, 16, DType::kBF16, kMixed}, {2, 1, 128, 32, DType::kF32, kMixed},
      {1, 1, 192, 16, DType::kF16, kMixed},  {2, 1, 256, 8, DType::kBF16, kMixed},
      {40, 1, 16, 16, DType::kF32, kMixed},  {3, 3, 6, 7, DType::kF32, kMixed},
      {6, 2, 32, 16, DType::kF32, kLong},    {2, 1, 40, 32, DType::kBF16, kLong},
      {97, 1, 8, 16, DType::kF32, {{3, 20}}}};
  uint64_t seed = 10;
  for (const Shape& shape : grid) {
    Problem p(shape, seed += 10);
    ExpectAccurate(
        Run(p), p.Loop<float>(), p.Loop<double>(),
        "dim " + std::to_string(shape.dim) + " block " + std::to_string(shape.block_size));
  }
}

TEST_P(AttentionTest, ChunksAndBlockSizesDoNotChangeBits) {
  // 600 keys cross a partial state's boundary. Every query alone must equal all in one call.
  const int32_t n = 600;
  Problem whole({6, 2, 24, 16, DType::kF32, {{n, n}}}, 7);
  const std::vector<float> expected = Run(whole);
  const int64_t width = 6 * 24;
  for (const int32_t block_size : {1, 8, 32, 64}) {
    for (const int32_t chunk : {1, 7, 256}) {
      for (int32_t end = 500; end <= n; end += chunk) {
        Problem part({6, 2, 24, block_size, DType::kF32, {{n, n}}}, 7);
        const int32_t first = std::max(0, end - chunk);
        part.cu_q = {0, end - first};
        part.seq_lens = {end};
        GuardedFloats out((end - first) * width);
        VarlenAttentionArgs args = part.Args(out.data());
        args.q += first * width;
        ASSERT_TRUE(kernels_->VarlenAttention(args).ok());
        ASSERT_EQ(std::memcmp(out.data(), &expected[first * width], (end - first) * width * 4), 0)
            << "block size " << block_size << " chunk " << chunk << " end " << end;
        if (chunk == 1) end += 30;
      }
    }
  }
}

TEST_P(AttentionTest, OtherSequencesAndThreadsDoNotChangeBits) {
  Problem mixed({6, 2, 32, 16, DType::kBF16, {{70, 700}, {1, 530}, {200, 200}}}, 3);
  const std::vector<float> expected = Run(mixed);
  for (const int threads : {2, 3}) {
    GuardedFloats out(mixed.out_size());
    ASSERT_TRUE(MakeTestKernels(GetParam(), threads)->VarlenAttention(mixed.Args(out.data())).ok());
    EXPECT_EQ(out.values(), expected) << threads;
  }
  GuardedFloats alone(6 * 32);
  VarlenAttentionArgs args = mixed.Args(alone.data());
  const int32_t cu[] = {0, 1};
  args.q += 70 * 6 * 32;
  args.num_seqs = 1;
  args.cu_seqlens_q = cu;
  args.seq_lens = &mixed.seq_lens[1];
  args.block_table = &mixed.table[mixed.max_blocks];
  ASSERT_TRUE(kernels_->VarlenAttention(args).ok());
  EXPECT_EQ(std::memcmp(alone.data(), &expected[70 * 6 * 32], 6 * 32 * 4), 0);
}

TEST_P(AttentionTest, KeysAfterAQueryDoNotTouchItEvenIfInfinite) {
  Problem clean({4, 2, 16, 8, DType::kF32, {{20, 20}}}, 5);
  const std::vector<float> expected = Run(clean);
  Problem sick({4, 2, 16, 8, DType::kF32, {{20, 20}}}, 5);
  const int64_t block = sick.table[1];  // Keys 8 to 15.
  std::vector<float> inf(2 * 8 * 16, std::numeric_limits<float>::infinity());
  std::memcpy(&sick.k_cache[block * 2 * 8 * 16 * 4], inf.data(), inf.size() * 4);
  std::memcpy(&sick.v_cache[block * 2 * 8 * 16 * 4], inf.data(), inf.size() * 4);
  const std::vector<float> got = Run(sick);
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), 8 * 4 * 16 * 4), 0);
}

TEST_P(AttentionTest, RoundsItsOutputWhenAsked) {
  Problem p({2, 1, 8, 16, DType::kF32, {{3, 5}}}, 6);
  GuardedFloats out(p.out_size());
  VarlenAttentionArgs args = p.Args(out.data());
  args.round_to = DType::kBF16;
  ASSERT_TRUE(kernels_->VarlenAttention(args).ok());
  EXPECT_EQ(out.values(), Rounded(DType::kBF16, Run(p)));
}

BATON_FOR_EACH_KERNEL_SET(AttentionTest);

}  // namespace
}  // namespace baton
