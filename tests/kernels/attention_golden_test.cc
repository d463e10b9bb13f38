// Attention against torch and the eager code of transformers: tests/golden/attention.json.
#include "tests/golden/golden_file.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/hashed_floats.h"
#include "tests/kernels/library_cases.h"

namespace baton {
namespace {

constexpr int32_t kGoldenHeads = 4, kGoldenKvHeads = 2, kGoldenDim = 16;

AttentionShapes GoldenShapes() {
  return {.heads = kGoldenHeads,
          .kv_heads = kGoldenKvHeads,
          .dim = kGoldenDim,
          .block_size = 8,
          .sequences = {{5, 18}, {1, 37}, {6, 6}, {2, 33}},
          .values = HashedFloats};
}

class AttentionGoldenTest : public LibraryTest {
 protected:
  void ExpectGolden(const std::vector<float>& got, const std::string& name) {
    const std::vector<float> golden = golden_.at(name);
    ASSERT_EQ(got.size(), golden.size()) << name;
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], golden[i], 5e-6) << name;
  }

  // In every layout.
  void Check(AttentionShapes shape, const std::string& name) {
    for (const auto layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
      shape.layout = layout;
      AttentionProblem p(shape, 1);
      GuardedFloats out(p.out_size());
      ASSERT_TRUE(kernels_->VarlenAttention(p.Args(out.data())).ok());
      ExpectGolden(out.values(), name);
    }
  }

  const nlohmann::json golden_ = ReadGoldenJson("attention.json");
};

TEST_P(AttentionGoldenTest, MasksAgreeWithThoseOfTransformers) {
  AttentionShapes shape = GoldenShapes();
  Check(shape, "causal");
  shape.scores.causal = false;
  Check(shape, "encoder");
  shape = GoldenShapes();
  shape.scores.local_chunk = 8;
  Check(shape, "chunk 8");
}

TEST_P(AttentionGoldenTest, DenseAndPrefixFormsAgreeWithTorch) {
  AttentionShapes shape = GoldenShapes();
  AttentionProblem dense(shape, 1);
  GuardedFloats out(dense.out_size());
  ASSERT_TRUE(kernels_->VarlenAttention(dense.DenseArgs(out.data())).ok());
  ExpectGolden(out.values(), "causal");
  shape.context_only = true;
  AttentionProblem prefix(shape, 1);
  ASSERT_TRUE(kernels_->PrefixAttention(prefix.PrefixArgs(out.data())).ok());
  ExpectGolden(out.values(), "causal");
}

TEST_P(AttentionGoldenTest, ScoresAgreeWithGemmaGptOssAndBloom) {
  AttentionShapes shape = GoldenShapes();
  shape.scores = {.scale = 0.5f, .softcap = 2, .window_left = 5};
  Check(shape, "window 6, softcap 2, scale 0.5");
  shape = GoldenShapes();
  shape.sinks = true;
  Check(shape, "sinks");
  shape = GoldenShapes();
  shape.alibi = true;
  Check(shape, "alibi");
}

TEST_P(AttentionGoldenTest, Fp8CachesAgreeWithTheTypesOfTorch) {
  AttentionShapes shape = GoldenShapes();
  shape.kv = DType::kFp8E4M3;
  shape.kv_scale = 0.25f;
  shape.v_scale_of_k = 1;
  Check(shape, "e4m3 / 0.25");
  shape.kv = DType::kFp8E5M2;
  shape.kv_scale = 0.5f;
  Check(shape, "e5m2 / 0.5");
}

TEST_P(AttentionGoldenTest, RotaryPairsAgreeWithLlamaAndGptJ) {
  constexpr int64_t kTokens = 7, kSeqs = 2, kWidth = int64_t{kGoldenKvHeads} * kGoldenDim;
  std::vector<float> cos, sin;
  for (int64_t i = 0; i < kTokens * kGoldenDim / 2; ++i) {
    const double angle =
        static_cast<double>(i / (kGoldenDim / 2)) *
        std::pow(10000.0, -2.0 * static_cast<double>(i % (kGoldenDim / 2)) / kGoldenDim);
    cos.push_back(static_cast<float>(std::cos(angle)));
    sin.push_back(static_cast<float>(std::sin(angle)));
  }
  const std::vector<float> q = HashedFloats(1, kSeqs * kTokens * kGoldenHeads * kGoldenDim);
  const std::vector<float> k = HashedFloats(2, kSeqs * kTokens * kWidth);
  const std::vector<float> v = HashedFloats(3, kSeqs * kTokens * kWidth);
  const std::vector<int32_t> empty(kSeqs);
  for (const bool interleaved : {false, true}) {
    std::vector<float> k_cache(kSeqs * kTokens * kWidth), v_cache = k_cache;
    CachePlane plane{.data = reinterpret_cast<std::byte*>(k_cache.data()),
                     .layout = CacheLayout::kNhd,
                     .num_blocks = kSeqs,
                     .num_heads = kGoldenKvHeads,
                     .block_size = kTokens,
                     .dim = kGoldenDim,
                     .block_stride = kTokens * kWidth};
    CachePlane v_plane = plane;
    v_plane.data = reinterpret_cast<std::byte*>(v_cache.data());
    GuardedFloats out(std::ssize(q));
    ASSERT_TRUE(kernels_
                    ->AttentionWithKvCache({.q = q.data(),
                                            .num_heads = kGoldenHeads,
                                            .num_seqs = kSeqs,
                                            .num_queries = kTokens,
                                            .k = k.data(),
                                            .v = v.data(),
                                            .num_new = kTokens,
                                            .k_cache = plane,
                                            .v_cache = v_plane,
                                            .cache_seqlens = empty.data(),
                                            .rotary_cos = cos.data(),
                                            .rotary_sin = sin.data(),
                                            .num_rotary_positions = kTokens,
                                            .rotary_dim = kGoldenDim,
                                            .rotary_interleaved = interleaved,
                                            .out = out.data()})
                    .ok());
    ExpectGolden(out.values(), interleaved ? "rotary interleaved" : "rotary halves");
  }
}

BATON_FOR_EACH_LIBRARY(AttentionGoldenTest);

}  // namespace
}  // namespace baton
