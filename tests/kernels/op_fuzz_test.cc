// Random operator arguments, plausible and hostile: a correct result or a Status, never a read of
// poison (it would show as a NaN) or a write outside the destination. BATON_FUZZ_SEED and
// BATON_FUZZ_CASES choose others.
#include <set>

#include "kernels/api/cascade_attention.h"
#include "tests/kernels/attention_problem.h"
#include "tests/kernels/fuzz_fixture.h"

namespace baton {
namespace {

class OpFuzzTest : public FuzzTest {
 protected:
  // An enumerator that is none of the first `n`.
  template <typename Enum>
  Enum NoSuch(int64_t n) {
    return static_cast<Enum>(n + Below(200));
  }
};

TEST_P(OpFuzzTest, PlausibleAttentionOfEveryFormAndLayoutIsCorrect) {
  const int64_t cases = FuzzCases();
  const int64_t first = FirstFuzzSeed();
  auto threaded = MakeFuzzed(GetParam(), 3);
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed + 1000000);
    const auto form = static_cast<AttentionForm>(Below(4));
    AttentionShapes shape = RandomAttention(random_, form == AttentionForm::kPaged);
    AddOptions(random_, form, shape);
    AttentionProblem p(Affordable(shape), seed);
    GuardedFloats out(p.out_size()), lse(p.total_q * p.shape.heads);
    const absl::Status status =
        RunForm(*threaded, form, static_cast<AttentionSplit>(Below(4)), p, out.data(), lse.data());
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
    p.Check(out.values(), lse.values(), 10, "form " + std::to_string(static_cast<int>(form)));
    if (HasFailure()) return;
  }
}

TEST_P(OpFuzzTest, HostilePartialsAndScalesAreRefusedOrHarmless) {
  const int64_t cases = 10 * FuzzCases();
  const int64_t first = FirstFuzzSeed();
  const float odd[] = {0, -1, NAN, INFINITY, -INFINITY, 1e-45f, 3e38f};
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    AttentionProblem p({.heads = 4,
                        .kv_heads = 2,
                        .sequences = {{1, 20}, {1, 530}},
                        .layout = static_cast<CacheLayout>(Below(3))},
                       1);
    GuardedFloats out(p.out_size()), lse(p.total_q * 4);
    GuardedFloats sums(2 * 4 * 2), maxima(2 * 4 * 2), tmp_out(2 * 4 * 2 * p.shape.v_dim);
    std::vector<float> descales[3] = {{1, 2, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}};
    PagedAttentionArgs args = p.PagedArgs(out.data(), AttentionSplit::kSplit, lse.data());
    args.partials = {sums.data(), maxima.data(), tmp_out.data(), 2};
    args.scales = {descales[0].data(), descales[1].data(), descales[2].data(), 2, 0.5f};
    const int64_t what = Below(12);
    if (what == 0) args.partials.exp_sums = nullptr;
    if (what == 1) args.partials.max_logits = nullptr;
    if (what == 2) args.partials.tmp_out = nullptr;
    if (what == 3) SpoilDown(args.partials.max_num_partitions);
    if (what == 4) args.split = static_cast<AttentionSplit>(Below(6));
    if (what == 5) SpoilDown(args.scales.stride);
    if (what == 6) args.scales.output_scale = odd[Below(7)];
    if (what == 7) descales[Below(3)][Below(4)] = odd[Below(7)];
    if (what == 8) SpoilDown(args.max_seq_len);
    if (what == 9) Spoil(p.seq_lens[Below(2)]);
    if (what == 10) Spoil(p.table[p.max_blocks + Below(p.max_blocks)]);
    if (what == 11) SpoilDown(args.num_seqs);
    const absl::Status status = kernels_->PagedAttention(args);
    for (const GuardedFloats* memory : {&out, &lse, &sums, &maxima, &tmp_out}) {
      ASSERT_TRUE(memory->GuardsIntact());
      if (status.ok()) continue;
      for (const float x : memory->values()) ASSERT_EQ(x, GuardedFloats::kCanary);
    }
    ASSERT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
    ASSERT_FALSE(status.ok() && what < 3);
  }
}

TEST_P(OpFuzzTest, HostileUpdatesOfACacheAreRefusedOrStayInTheirPlace) {
  const int64_t cases = 10 * FuzzCases();
  const int64_t first = FirstFuzzSeed();
  const std::vector<float> x = RandomFloats(1, 3 * 32);
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    GuardedFloats caches[2] = {GuardedFloats(4 * 8 * 32), GuardedFloats(4 * 8 * 32)};
    GuardedFloats outs[2] = {GuardedFloats(16 * 40), GuardedFloats(16 * 40)};
    std::vector<int64_t> slots = {3, -1, 30};
    std::vector<int32_t> cu = {0, 9, 9, 16}, table = {0, 3, -1, -1, 2, -1};
    CachePlane plane{.data = reinterpret_cast<std::byte*>(caches[0].data()),
                     .layout = static_cast<CacheLayout>(Below(3)),
                     .num_blocks = 4,
                     .num_heads = 2,
                     .block_size = 8,
                     .dim = 16,
                     .block_stride = 8 * 32};
    UpdateKvCacheArgs args{.append = {.key = x.data(), .key_stride = 32, .value = x.data(),
                                      .value_stride = 32, .slot_mapping = slots.data(),
                                      .num_tokens = 3, .k_cache = plane, .v_cache = plane},
                           .num_seqs = 3,
                           .cu_seqlens_k = cu.data(),
                           .block_table = table.data(),
                           .max_blocks = 2,
                           .k_out = outs[0].data(),
                           .k_out_stride = 40,
                           .v_out = outs[1].data(),
                           .v_out_stride = 40};
    args.append.v_cache.data = reinterpret_cast<std::byte*>(caches[1].data());
    const int64_t what = Below(11);
    if (what == 0) Spoil(slots[Below(3)]);
    // Such a slot has no one content.
    if (std::set<int64_t>(slots.begin(), slots.end()).size() < slots.size()) continue;
    if (what == 1) SpoilDown(cu[Below(4)]);
    if (what == 2) Spoil(table[Below(6)]);
    if (what == 3) SpoilDown(args.num_seqs);
    if (what == 4) SpoilDown(args.max_blocks);
    if (what == 5) SpoilDown(args.k_out_stride);
    if (what == 6) SpoilDown(args.append.num_tokens);
    if (what == 7) SpoilDown(args.append.k_cache.num_blocks);
    if (what == 8) SpoilDown(args.append.v_cache.block_size);
    if (what == 9) args.k_out = {outs[0].data(), NoSuch<DType>(1)};
    if (what == 10) args.block_table = nullptr;
    const absl::Status status = kernels_->UpdateKvCache(args);
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(caches[i].GuardsIntact() && outs[i].GuardsIntact());
      if (status.ok()) continue;
      for (const float y : caches[i].values()) ASSERT_EQ(y, GuardedFloats::kCanary);
      for (const float y : outs[i].values()) ASSERT_EQ(y, GuardedFloats::kCanary);
    }
    ASSERT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
    ASSERT_FALSE(status.ok() && what == 9);
  }
}

TEST_P(OpFuzzTest, HostileDenseKeysAreRefusedOrHarmless) {
  const int64_t cases = 10 * FuzzCases();
  const int64_t first = FirstFuzzSeed();
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    AttentionProblem p({.heads = 4, .kv_heads = 2, .sequences = {{3, 20}, {1, 33}, {0, 5}}}, 1);
    GuardedFloats out(p.out_size()), lse(p.total_q * 4);
    VarlenAttentionArgs args = p.DenseArgs(out.data(), lse.data());
    switch (Below(10)) {
      case 0:
        SpoilDown(p.cu_k[Below(4)]);
        break;
      case 1:
        args.dense.k = nullptr;
        break;
      case 2:
        args.dense.v = nullptr;
        break;
      case 3:
        args.dense.cu_seqlens_k = nullptr;
        break;
      case 4:
        SpoilDown(args.dense.k_stride);
        break;
      case 5:
        SpoilDown(args.dense.num_heads);
        break;
      case 6:
        SpoilDown(args.dense.k_dim);
        break;
      case 7:
        SpoilDown(args.dense.v_dim);
        break;
      case 8:
        args.seq_lens = p.seq_lens.data();
        Spoil(p.seq_lens[Below(3)]);
        break;
      case 9:
        args.k_cache.data = reinterpret_cast<std::byte*>(p.k.data());
        break;
    }
    const absl::Status status = kernels_->VarlenAttention(args);
    EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
    for (const float x : out.values()) ASSERT_TRUE(status.ok() || x == GuardedFloats::kCanary);
    ASSERT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST_P(OpFuzzTest, HostileCascadesAndMergesAreRefusedOrHarmless) {
  const int64_t cases = 10 * FuzzCases();
  const int64_t first = FirstFuzzSeed();
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    AttentionProblem p({.heads = 4, .kv_heads = 2, .sequences = {{3, 40}, {1, 33}, {0, 5}}}, 1);
    GuardedFloats out(p.out_size()), lse(p.total_q * 4);
    CascadeAttentionArgs args{.attention = p.Args(out.data(), lse.data()), .common_prefix_len = 16};
    VarlenAttentionArgs& a = args.attention;
    a.num_tokens = p.total_q;
    const int64_t floats = CascadeWorkspaceBytes(args) / 4;
    GuardedFloats workspace(floats + 4);
    const auto behind = reinterpret_cast<uintptr_t>(workspace.data()) % 16 / 4;
    args.workspace = reinterpret_cast<std::byte*>(workspace.data() + (4 - behind) % 4);
    args.workspace_bytes = floats * 4;
    MergeAttentionStatesArgs merge{.out_a = p.q.data(),
                                   .lse_a = p.q.data(),
                                   .out_b = p.q.data(),
                                   .lse_b = p.q.data(),
                                   .num_tokens = p.total_q,
                                   .num_heads = 4,
                                   .dim = p.shape.v_dim,
                                   .out = out.data(),
                                   .lse = lse.data()};
    const int64_t what = Below(16);
    if (what == 0) Spoil(args.common_prefix_len);
    if (what == 1) SpoilDown(p.cu_q[Below(4)]);
    if (what == 2) Spoil(p.seq_lens[Below(3)]);
    if (what == 3) Spoil(a.num_heads);
    if (what == 4) Spoil(a.v_cache.dim);
    if (what == 5) a.round_to = NoSuch<DType>(3);
    if (what == 6) Spoil(p.table[Below(p.max_blocks)]);
    if (what == 7) Spoil(a.max_seqlen_q);
    if (what == 8) Spoil(a.max_seqlen_k);
    if (what == 9) SpoilDown(a.out_stride);
    if (what == 10) Spoil(a.k_cache.block_size);
    if (what == 11) Spoil(a.k_cache.num_blocks);
    if (what == 12) SpoilDown(merge.num_tokens);
    if (what == 13) SpoilDown(merge.dim);
    if (what == 14) SpoilDown(merge.num_heads);
    if (what == 3 && Chance(80)) a.out_stride = INT64_MAX;
    if (what == 15) {
      for (int32_t& start : p.cu_q) start -= 8;
    }
    const absl::Status status = what < 12 || what == 15
                                    ? CascadeAttention(*kernels_, *kernels_, args)
                                    : kernels_->MergeAttentionStates(merge);
    EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact() && workspace.GuardsIntact());
    for (const float x : out.values()) ASSERT_TRUE(status.ok() || x == GuardedFloats::kCanary);
    ASSERT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST_P(OpFuzzTest, HostileKvCacheArgumentsAreRefusedOrStayInTheCache) {
  const int64_t cases = 10 * FuzzCases();
  const int64_t first = FirstFuzzSeed();
  constexpr int64_t kBlocks = 6, kSize = 8, kWidth = 2 * 16, kGuard = 64;
  const std::vector<float> q = RandomFloats(1, 2 * 2 * 4 * 16), rotary(64 * 8, 0.5f);
  const std::vector<float> k = RandomFloats(2, 2 * kSize * 3 * kWidth);
  for (int64_t seed = first; seed < first + cases; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    random_ = Random(seed);
    std::vector<float> caches[2];
    for (auto& cache : caches) cache.assign(kBlocks * kSize * kWidth + 2 * kGuard, 0.25f);
    const auto before = caches[0];
    std::vector<int32_t> lens = {3, 9}, pads = {1, 0}, index = {4, 2}, table = {5, 0, -1, 1, 3, -1};
    const bool paged = Chance(50);
    GuardedFloats out(2 * 2 * 4 * 16), lse(2 * 2 * 4);
    AttentionWithKvCacheArgs args{.q = q.data(),
                                  .num_heads = 4,
                                  .num_seqs = 2,
                                  .num_queries = 2,
                                  .k = k.data(),
                                  .v = k.data(),
                                  .num_new = 2,
                                  .cache_seqlens = lens.data(),
                                  .cache_batch_idx = paged ? nullptr : index.data(),
                                  .cache_leftpad = Chance(50) ? pads.data() : nullptr,
                                  .block_table = paged ? table.data() : nullptr,
                                  .max_blocks = 3,
                                  .rotary_cos = rotary.data(),
                                  .rotary_sin = rotary.data(),
                                  .num_rotary_positions = 64,
                                  .rotary_dim = 16,
                                  .out = out.data(),
                                  .lse = lse.data()};
    args.k_cache = {.data = reinterpret_cast<std::byte*>(caches[0].data() + kGuard),
                    .layout = static_cast<CacheLayout>(Below(3)),
                    .num_blocks = kBlocks,
                    .num_heads = 2,
                    .block_size = kSize,
                    .dim = 16,
                    .block_stride = kSize * kWidth};
    args.v_cache = args.k_cache;
    args.v_cache.data = reinterpret_cast<std::byte*>(caches[1].data() + kGuard);
    if (!paged) lens[1] = 5;
    int32_t* const entries[] = {&lens[Below(2)], &pads[Below(2)], &index[Below(2)],
                                &table[Below(6)]};
    const int64_t what = Below(10);
    if (what < 4) Spoil(*entries[what]);
    if (what == 4) Spoil(args.num_new);
    if (what == 5) Spoil(args.rotary_dim);
    if (what == 6) args.num_rotary_positions = Below(8);
    if (what == 7) Spoil(args.num_splits);
    if (what == 8) args.num_queries = Below(3);
    const absl::Status status = kernels_->AttentionWithKvCache(args);
    EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact());
    for (const auto& cache : caches) {
      for (int64_t i = 0; i < kGuard; ++i) {
        ASSERT_EQ(cache[i], 0.25f);
        ASSERT_EQ(cache[cache.size() - 1 - i], 0.25f);
      }
    }
    if (status.ok()) {
      if (what == 8) continue;
      for (const float x : out.values()) ASSERT_TRUE(std::isfinite(x));
    } else {
      ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      ASSERT_TRUE(caches[0] == before && caches[1] == before);
      for (const float x : out.values()) ASSERT_EQ(x, GuardedFloats::kCanary);
    }
  }
}

BATON_FOR_EACH_FUZZED(OpFuzzTest);

}  // namespace
}  // namespace baton
