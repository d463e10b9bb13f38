#include "kernels/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "tests/kernels/attention_problem.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

struct Result {
  std::vector<float> out, lse;
  bool operator==(const Result&) const = default;
};

struct RunOptions {
  bool scratch = false;
  bool ragged = false;
  DType out = DType::kF32;
  bool spread = false;  // K and V have gaps of every kind.
};

// The rows of a dense plane with NaN between tokens, heads and blocks.
struct SpreadPlane {
  explicit SpreadPlane(const CachePlane& dense)
      : plane(dense), bytes(std::make_shared<DeviceBytes>(Spread(dense))) {
    plane.data = static_cast<std::byte*>(bytes->data());
  }

  CachePlane plane;
  std::shared_ptr<DeviceBytes> bytes;

 private:
  std::vector<std::byte> Spread(const CachePlane& dense) {
    plane.token_stride = dense.dim + 8;
    plane.head_stride = dense.block_size * plane.token_stride + 16;
    plane.block_stride = dense.num_heads * plane.head_stride + 24;
    const int64_t size = SizeOf(dense.dtype), row = dense.dim * size;
    std::vector<std::byte> all(dense.num_blocks * plane.block_stride * size, std::byte{0xff});
    for (int64_t b = 0; b < dense.num_blocks; ++b) {
      for (int64_t h = 0; h < dense.num_heads; ++h) {
        for (int64_t t = 0; t < dense.block_size; ++t) {
          const int64_t from = b * dense.block_stride * size + (h * dense.block_size + t) * row;
          const int64_t to =
              b * plane.block_stride + h * plane.head_stride + t * plane.token_stride;
          std::copy_n(dense.data + from, row, all.begin() + to * size);
        }
      }
    }
    return all;
  }
};

// A problem whose arrays are on the device.
class DeviceProblem {
 public:
  explicit DeviceProblem(AttentionProblem& problem)
      : problem_(problem),
        q_(problem.shape.compute, WithTail(problem.q)),
        k_(problem.k_cache),
        v_(problem.v_cache),
        table_(problem.table),
        cu_q_(problem.cu_q),
        lens_(problem.seq_lens),
        ragged_(problem.Ragged().entries),
        starts_(problem.Ragged().starts),
        slopes_(DType::kF32, problem.slopes),
        scales_(DType::kF32, problem.scales),
        sinks_(DType::kF32, problem.sinks) {}

  Result Run(const RunOptions& options = {}) const {
    AttentionProblem& p = problem_;
    const VarlenAttentionArgs host = p.Args(nullptr);
    const DeviceFloats out(options.out, p.out_size());
    const DeviceFloats lse(DType::kF32, p.total_q * p.shape.heads);
    VarlenAttentionArgs args = host;
    args.q = q_;
    args.cu_seqlens_q = cu_q_.data();
    args.num_tokens = p.total_q;
    args.seq_lens = lens_.data();
    args.block_table = options.ragged ? ragged_.data() : table_.data();
    if (options.ragged) args.table_starts = starts_.data();
    args.round_to = options.out;
    args.out = out;
    args.lse = lse.f32();
    args.lse_stride = p.total_q;
    args.max_seqlen_q = args.max_seqlen_k = 0;
    for (const auto& [queries, keys] : p.shape.sequences) {
      args.max_seqlen_q = std::max(args.max_seqlen_q, queries);
      args.max_seqlen_k = std::max(args.max_seqlen_k, keys);
    }
    std::optional<SpreadPlane> k, v;
    if (options.spread) {
      k.emplace(args.k_cache);
      v.emplace(args.v_cache);
      args.k_cache = k->plane;
      args.v_cache = v->plane;
    } else {
      args.k_cache.data = static_cast<std::byte*>(k_.data());
      args.v_cache.data = static_cast<std::byte*>(v_.data());
    }
    args.k_cache.scales = args.v_cache.scales = scales_.f32();
    if (args.scores.alibi_slopes != nullptr) args.scores.alibi_slopes = slopes_.f32();
    if (args.scores.sinks != nullptr) args.scores.sinks = sinks_.f32();
    const DeviceFloats scratch(DType::kF32, ScratchBytes(args) / 4);
    EXPECT_EQ(VarlenAttention(args, options.scratch ? scratch.f32() : nullptr, nullptr),
              cudaSuccess);
    Result result{out.Read(), lse.Read()};
    scratch.ReadBytes();  // Its guards.
    return result;
  }

 private:
  // Behind the last head, whose kernel may have more columns, there are NaN.
  static std::vector<float> WithTail(std::vector<float> q) {
    q.insert(q.end(), 256, NAN);
    return q;
  }

  AttentionProblem& problem_;
  DeviceFloats q_;
  DeviceBytes k_, v_;
  DeviceArray<int32_t> table_, cu_q_, lens_, ragged_, starts_;
  DeviceFloats slopes_, scales_, sinks_;
};

// Half types, K and V as they are or in fp8.
struct Types {
  DType compute;
  DType kv;
};
constexpr Types kTypes[] = {{DType::kBF16, DType::kBF16},
                            {DType::kF16, DType::kF16},
                            {DType::kBF16, DType::kFp8E4M3},
                            {DType::kF16, DType::kFp8E5M2}};

AttentionShapes Shape(Types types, int32_t dim,
                      std::vector<std::pair<int32_t, int32_t>> sequences) {
  return {.heads = 4,
          .kv_heads = 2,
          .dim = dim,
          .block_size = 16,
          .kv = types.kv,
          .sequences = std::move(sequences),
          .kv_scale = IsFp8(types.kv) ? 0.25f : 0.0f,
          .scale_per_head = dim % 64 == 0,
          .compute = types.compute};
}

void ExpectAccurate(const AttentionShapes& shape, uint64_t seed, const std::string& what) {
  emulation::SetSeed(seed);
  AttentionProblem problem(shape, seed);
  const DeviceProblem device(problem);
  const Result result = device.Run({.out = shape.compute});
  problem.Check(result.out, result.lse, 1 << 30, what);
}

class AttentionTest : public DeviceTest, public testing::WithParamInterface<Types> {};

// Each head size, also such that run in a larger kernel; lengths around steps of 64 and blocks.
TEST_P(AttentionTest, IsAccurateForEveryHeadSize) {
  for (const int32_t dim : {8, 32, 40, 64, 80, 96, 112, 120, 128, 136, 192, 256}) {
    ExpectAccurate(Shape(GetParam(), dim, {{3, 65}, {1, 17}, {0, 5}, {2, 0}, {33, 64}}), 1 + dim,
                   "dim " + std::to_string(dim));
  }
}

TEST_P(AttentionTest, IsAccurateAcrossPartialsAndWithinBlocksOfAnySize) {
  uint64_t seed = 100;
  for (const int32_t block_size : {1, 8, 16, 32, 64, 128, 256}) {
    AttentionShapes shape = Shape(GetParam(), 64, {{1, 511}, {1, 512}, {2, 513}, {1, 1030}});
    shape.block_size = block_size;
    ExpectAccurate(shape, ++seed, "blocks of " + std::to_string(block_size));
  }
}

TEST_P(AttentionTest, TakesEveryOptionOfTheScores) {
  const auto sequences = std::vector<std::pair<int32_t, int32_t>>{{70, 200}, {1, 600}, {5, 9}};
  std::vector<ScoreOptions> options(12);
  options[1].scale = 0.3f;
  options[2].softcap = 3;
  options[3].causal = false;
  options[4].window_left = 15;
  options[5].window_left = 0;
  options[6] = {.causal = false, .window_left = 20, .window_right = 7};
  options[7] = {.causal = false, .window_right = 2147483647};
  options[8].local_chunk = 48;
  options[11] = {.window_left = 15, .local_chunk = 48};
  options[9] = {.softcap = 20, .window_left = 511, .window_right = 0};
  for (size_t i = 0; i < options.size(); ++i) {
    AttentionShapes shape = Shape(GetParam(), 64, sequences);
    shape.scores = options[i];
    shape.alibi = i == 10 || i == 3;
    shape.alibi_per_sequence = i == 10;
    shape.sinks = i == 9 || i == 4 || i == 0;
    ExpectAccurate(shape, 200 + i, "option " + std::to_string(i));
  }
}

TEST_P(AttentionTest, SharesTheRowsOfATileAmongHeads) {
  for (const auto& [heads, kv_heads] : {std::pair(1, 1), std::pair(9, 3), std::pair(6, 1),
                                        std::pair(7, 7), std::pair(70, 1), std::pair(8, 2)}) {
    AttentionShapes shape = Shape(GetParam(), 32, {{1, 100}, {11, 70}, {25, 25}});
    shape.heads = heads;
    shape.kv_heads = kv_heads;
    ExpectAccurate(shape, 300 + heads, std::to_string(heads) + " heads");
  }
}

// Rows of queries [first, first + n) of sequence `s` of a result.
Result RowsOf(const AttentionProblem& problem, const Result& all, size_t s, int64_t first,
              int64_t n) {
  const int64_t width = int64_t{problem.shape.heads} * problem.shape.v_dim;
  const int64_t token = problem.cu_q[s] + first;
  Result rows{{all.out.begin() + token * width, all.out.begin() + (token + n) * width}, {}};
  for (int64_t h = 0; h < problem.shape.heads; ++h) {
    const auto from = all.lse.begin() + h * problem.total_q + token;
    rows.lse.insert(rows.lse.end(), from, from + n);
  }
  return rows;
}

// Changes the queries that a problem asks, but neither K and V nor positions: the last `n` of the
// first n + skipped of sequence 0.
Result AskLast(AttentionProblem& problem, const std::vector<float>& q, int64_t first, int64_t n,
               int32_t keys, const RunOptions& options) {
  const int64_t width = int64_t{problem.shape.heads} * problem.shape.dim;
  problem.q.assign(q.begin() + first * width, q.begin() + (first + n) * width);
  problem.total_q = n;
  problem.cu_q = {0, static_cast<int32_t>(n)};
  problem.seq_lens = {keys};
  problem.shape.sequences = {{static_cast<int32_t>(n), keys}};
  return DeviceProblem(problem).Run(options);
}

// A prompt in one step, in chunks, and token by token, with each partial in a block of its own or
// all in one: the same bits.
TEST_P(AttentionTest, BitsDependOnNeitherChunksNorPartialsNorTiles) {
  constexpr int32_t kQueries = 70, kKeys = 1100;
  for (const auto& [dim, window] : {std::pair(64, -1), std::pair(192, 700)}) {
    AttentionShapes shape = Shape(GetParam(), dim, {{kQueries, kKeys}});
    shape.scores.window_left = window;
    shape.sinks = window < 0;
    const AttentionProblem original(shape, 7);
    AttentionProblem problem(shape, 7);
    const Result whole = DeviceProblem(problem).Run();
    for (const auto& [first, n] : {std::pair(0, 1), std::pair(69, 1), std::pair(37, 1),
                                   std::pair(0, 32), std::pair(32, 38), std::pair(13, 2)}) {
      const Result expected = RowsOf(original, whole, 0, first, n);
      for (const bool scratch : {false, true}) {
        EXPECT_EQ(AskLast(problem, original.q, first, n, kKeys - kQueries + first + n,
                          {.scratch = scratch}),
                  expected)
            << "dim " << dim << " queries " << first << "+" << n << (scratch ? " split" : "");
      }
    }
  }
}

TEST_P(AttentionTest, BitsDependOnNeitherBatchNorBlocks) {
  const auto sequences = std::vector<std::pair<int32_t, int32_t>>{{1, 530}, {40, 90}, {1, 64}};
  AttentionShapes shape = Shape(GetParam(), 128, sequences);
  AttentionProblem problem(shape, 9);
  const Result whole = DeviceProblem(problem).Run();
  for (const int32_t block_size : {8, 64}) {
    AttentionShapes other = shape;
    other.block_size = block_size;
    AttentionProblem same(other, 9);
    EXPECT_EQ(DeviceProblem(same).Run(), whole) << block_size;
    EXPECT_EQ(DeviceProblem(same).Run({.ragged = true}), whole) << block_size;
  }
  // Sequence 0 alone has the same values: they are drawn in order.
  AttentionShapes alone = shape;
  alone.sequences = {sequences[0]};
  AttentionProblem first(alone, 9);
  EXPECT_EQ(DeviceProblem(first).Run({.scratch = true}), RowsOf(problem, whole, 0, 0, 1));
}

TEST_P(AttentionTest, LeavesGapsOfStridesAlone) {
  AttentionShapes shape = Shape(GetParam(), 64, {{5, 70}, {1, 33}});
  shape.row_gap = 8;
  ExpectAccurate(shape, 11, "gaps");
  shape.row_gap = 0;
  AttentionProblem problem(shape, 12);
  const DeviceProblem device(problem);
  EXPECT_EQ(device.Run({.spread = true}), device.Run());
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionTest, testing::ValuesIn(kTypes), [](const auto& info) {
  return std::string(ToString(info.param.compute)) + "_cache_" +
         std::string(ToString(info.param.kv));
});

using AttentionOfDeviceTest = DeviceTest;

// What the real kernels do in any order of threads, blocks and copies is never called a fault.
TEST_F(AttentionOfDeviceTest, GivesOneResultInEveryOrder) {
  AttentionProblem problem(Shape(kTypes[0], 32, {{1, 600}, {3, 70}}), 3);
  const DeviceProblem device(problem);
  const Result expected = device.Run();
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    emulation::SetSeed(seed);
    ASSERT_EQ(device.Run({.scratch = seed % 2 == 0}), expected) << seed;
  }
}

// An early query that sees far keys by ALiBi: the first partial's maximum is above the last one's
// by more than the exponents of a float, either of which may be the one that a fold keeps.
TEST_F(AttentionOfDeviceTest, FoldsPartialsWhoseMaximaAreFarApart) {
  AttentionShapes shape = Shape(kTypes[0], 32, {{560, 1100}});
  shape.kv_heads = 1;
  shape.scores.causal = false;
  shape.alibi = true;
  AttentionProblem problem(shape, 13);
  const Result result = DeviceProblem(problem).Run({.out = shape.compute});
  problem.Check(result.out, result.lse, 300, "far apart");
}

// The scratch memory is that of the queries there are, not of the longest row of each sequence.
TEST_F(AttentionOfDeviceTest, RaggedQueriesFoldTheirPartialsToTheSameBits) {
  AttentionProblem problem(Shape(kTypes[0], 64, {{4, 1100}, {1, 700}, {2, 600}}), 17);
  const std::vector<float> whole = DeviceProblem(problem).Run().out;
  EXPECT_EQ(DeviceProblem(problem).Run({.scratch = true}).out, whole);
}

// Slopes so steep that all keys but the last few have a score of -inf.
TEST_F(AttentionOfDeviceTest, APartialWithoutAFiniteScoreCountsForNothing) {
  AttentionShapes shape = Shape(kTypes[0], 32, {{1, 1100}});
  shape.alibi = true;
  AttentionProblem problem(shape, 19);
  std::ranges::fill(problem.slopes, 1e38f);
  const std::vector<float> whole = DeviceProblem(problem).Run().out;
  for (const float x : whole) ASSERT_TRUE(std::isfinite(x));
  EXPECT_EQ(DeviceProblem(problem).Run({.scratch = true}).out, whole);
}

// A call of either operator that is allowed, to be spoilt.
class AttentionRefusalTest : public DeviceTest {
 protected:
  VarlenAttentionArgs Varlen() {
    VarlenAttentionArgs args = problem_.Args(nullptr);
    args.q = q_;
    args.cu_seqlens_q = cu_q_.data();
    args.num_tokens = 2;
    args.max_seqlen_q = 1;
    args.seq_lens = lens_.data();
    args.max_seqlen_k = 700;
    args.block_table = table_.data();
    args.k_cache.data = static_cast<std::byte*>(k_.data());
    args.v_cache.data = static_cast<std::byte*>(v_.data());
    args.round_to = DType::kF32;
    args.out = out_;
    args.lse = nullptr;
    return args;
  }
  PagedAttentionArgs Paged() {
    const VarlenAttentionArgs args = Varlen();
    return {.q = args.q,
            .q_stride = args.q_stride,
            .num_heads = args.num_heads,
            .num_seqs = args.num_seqs,
            .block_tables = args.block_table,
            .max_blocks = args.max_blocks,
            .seq_lens = args.seq_lens,
            .max_seq_len = args.max_seqlen_k,
            .k_cache = args.k_cache,
            .v_cache = args.v_cache,
            .scores = args.scores,
            .out = out_,
            .out_stride = args.out_stride};
  }
  template <typename Change>
  bool Refuses(const Change& change) {
    VarlenAttentionArgs args = Varlen();
    change(args);
    return VarlenAttention(args, nullptr, nullptr) == cudaErrorInvalidValue;
  }
  template <typename Change>
  bool RefusesPaged(const Change& change) {
    PagedAttentionArgs args = Paged();
    change(args);
    return PagedAttention(args, nullptr, nullptr) == cudaErrorInvalidValue;
  }

  AttentionProblem problem_{Shape(kTypes[0], 64, {{1, 700}, {1, 5}}), 3};
  DeviceFloats q_{DType::kBF16, problem_.q}, out_{DType::kF32, problem_.out_size()};
  DeviceBytes k_{problem_.k_cache}, v_{problem_.v_cache};
  DeviceArray<int32_t> table_{problem_.table}, lens_{problem_.seq_lens}, cu_q_{problem_.cu_q};
};

TEST_F(AttentionRefusalTest, OneQueryEachIsPagedAttention) {
  ASSERT_EQ(VarlenAttention(Varlen(), nullptr, nullptr), cudaSuccess);
  const std::vector<float> expected = out_.Read();
  const DeviceFloats scratch(DType::kF32, ScratchBytes(Paged()) / 4);
  for (float* memory : {static_cast<float*>(nullptr), scratch.f32()}) {
    const DeviceFloats out(DType::kF32, problem_.out_size());
    PagedAttentionArgs args = Paged();
    args.out = out;
    ASSERT_EQ(PagedAttention(args, memory, nullptr), cudaSuccess);
    EXPECT_EQ(out.Read(), expected);
  }
  // A single pass leaves the scratch memory alone.
  const DeviceFloats untouched(DType::kF32, std::vector<float>(ScratchBytes(Paged()) / 4, 7));
  PagedAttentionArgs args = Paged();
  args.split = AttentionSplit::kSinglePass;
  ASSERT_EQ(PagedAttention(args, untouched.f32(), nullptr), cudaSuccess);
  for (const float x : untouched.Read()) ASSERT_EQ(x, 7);
}

TEST_F(AttentionRefusalTest, RefusesWhatTheKernelsDoNotServe) {
  EXPECT_FALSE(Refuses([](auto&) {}));
  EXPECT_TRUE(Refuses([](auto& a) { a.q.dtype = DType::kF32; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.num_heads = 3; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.k_cache.dim = a.v_cache.dim = 60; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.k_cache.dim = a.v_cache.dim = 264; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.v_cache.dim = 32; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.k_cache.layout = CacheLayout::kNhd; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.v_cache.layout = CacheLayout::kPacked; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.k_cache.dtype = DType::kF16; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.v_cache.dtype = DType::kFp8E4M3; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.k_cache.block_stride += 4; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.v_cache.head_stride = 1028; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.v_cache.token_stride = 68; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.k_cache.data += 8; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.q_stride = 260; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.q = a.q.At(1); }));
  EXPECT_TRUE(Refuses([](auto& a) { a.out.dtype = a.round_to = DType::kF16; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.round_to = DType::kBF16; }));
  const int32_t dense[] = {0, 1, 2};
  EXPECT_TRUE(Refuses([&](auto& a) { a.dense.cu_seqlens_k = dense; }));
  // What the host cannot read.
  EXPECT_TRUE(Refuses([](auto& a) { a.num_tokens = 0; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.max_seqlen_q = 0; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.max_seqlen_k = 0; }));
  EXPECT_TRUE(Refuses([](auto& a) { a.cu_seqlens_q = nullptr; }));
  EXPECT_FALSE(RefusesPaged([](auto&) {}));
  EXPECT_TRUE(RefusesPaged([](auto& a) { a.round_to = DType::kBF16; }));
  EXPECT_TRUE(RefusesPaged([](auto& a) { a.sparsity.vert_stride = 2; }));
  EXPECT_TRUE(RefusesPaged([](auto& a) { a.q.dtype = DType::kF32; }));
  EXPECT_EQ(VarlenAttention({}, nullptr, nullptr), cudaSuccess);  // No sequences.
}

}  // namespace
}  // namespace baton::cuda
