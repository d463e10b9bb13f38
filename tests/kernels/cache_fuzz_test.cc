// Random arguments of the cache operators and of batch metadata: what is valid must give the
// expected bytes, what was spoiled gives them too or is refused, and then nothing was written.
// BATON_FUZZ_SEED and BATON_FUZZ_CASES choose others.
#include <algorithm>
#include <numeric>
#include <span>

#include "kernels/api/batch.h"
#include "tests/kernels/cache_layouts.h"
#include "tests/kernels/fuzz_fixture.h"

namespace baton {
namespace {

class CacheFuzzTest : public FuzzTest {
 protected:
  CacheShape RandomShape() {
    CacheShape s{.layout = static_cast<CacheLayout>(Below(3)),
                 .dtype = static_cast<DType>(Below(5)),
                 .is_key = Chance(50),
                 .num_blocks = 2 + Below(6),
                 .heads = static_cast<int32_t>(1 + Below(4)),
                 .block_size = static_cast<int32_t>(1 + Below(9)),
                 .gap = Below(4)};
    s.dim = RandomDim(s);
    if (s.layout != CacheLayout::kPacked) s.row_gap = Chance(30) ? Below(5) : 0;
    return s;
  }
  int32_t RandomDim(const CacheShape& s) {
    if (s.layout != CacheLayout::kPacked) return static_cast<int32_t>(1 + Below(40));
    return static_cast<int32_t>(16 / SizeOf(s.dtype) * (1 + Below(4)));
  }
  // 0, 1, ... in random order.
  template <typename T>
  std::vector<T> Permutation(int64_t n) {
    std::vector<T> p(n);
    std::iota(p.begin(), p.end(), 0);
    for (int64_t i = n - 1; i > 0; --i) std::swap(p[i], p[Below(i + 1)]);
    return p;
  }
  void SpoilPlane(CachePlane& plane) {
    switch (Below(8)) {
      case 0:
        return Spoil(plane.dim);
      case 1:
        return Spoil(plane.num_heads);
      case 2:
        return Spoil(plane.block_size);
      case 3:
        return SpoilDown(plane.num_blocks);
      case 4:
        return SpoilDown(plane.block_stride);
      case 5:
        plane.layout = static_cast<CacheLayout>(Below(5));
        return;
      case 6:
        return Spoil(plane.head_stride);
      case 7:
        return Spoil(plane.token_stride);
    }
  }
  void SpoilWrite(ReshapeAndCacheArgs& args, std::vector<int64_t>& slots, const float* scales) {
    switch (Below(5)) {
      case 0:
        if (!slots.empty()) Spoil(slots[Below(std::ssize(slots))]);
        break;
      case 1:
        SpoilDown(args.num_tokens);
        break;
      case 2:
        SpoilDown(args.key_stride);
        break;
      case 3:
        Spoil(args.v_cache.num_scales);
        args.v_cache.num_scales = std::min(args.v_cache.num_scales, 4);
        args.v_cache.scales = scales;
        break;
      case 4:
        SpoilPlane(args.k_cache);
        if (Chance(70)) SpoilPlane(args.v_cache);
        break;
    }
  }
  void SpoilSwap(BlockRun (&runs)[2], HeadRun& heads, CachePlane& destination) {
    const DType dtype = destination.dtype;
    switch (Below(6)) {
      case 0:
        Spoil(runs[Below(2)].source);
        break;
      case 1:
        Spoil(runs[Below(2)].destination);
        break;
      case 2:
        Spoil(runs[Below(2)].count);
        break;
      case 3:
        Spoil(heads.count);
        break;
      case 4:
        Spoil(heads.source);
        break;
      case 5:
        destination.layout = static_cast<CacheLayout>(Below(5));
        destination.dtype = static_cast<DType>(Below(5));
        if (SizeOf(destination.dtype) > SizeOf(dtype)) destination.dtype = dtype;
        break;
    }
  }
  void SpoilStep(AdvanceStepArgs& args) {
    switch (Below(5)) {
      case 0:
        SpoilDown(args.num_seqs);
        break;
      case 1:
        SpoilDown(args.num_queries);
        break;
      case 2:
        SpoilDown(args.block_size);
        break;
      case 3:
        SpoilDown(args.max_blocks);
        break;
      case 4:
        if (args.num_queries > 0) Spoil(args.seq_lens[Below(args.num_queries)]);
        break;
    }
  }
  void SpoilBatch(BuildBatchArgs& args, std::vector<BatchSequence>& sequences,
                  std::vector<std::vector<int32_t>>& blocks) {
    const size_t i = sequences.empty() ? 0 : Below(std::ssize(sequences));
    switch (sequences.empty() ? 5 + Below(3) : Below(8)) {
      case 0:
        Spoil(sequences[i].context_len);
        break;
      case 1:
        Spoil(sequences[i].query_len);
        break;
      case 2:
        SpoilDown(sequences[i].num_blocks);
        break;
      case 3:
        Spoil(blocks[i][Below(std::ssize(blocks[i]))]);
        break;
      case 4:
        SpoilDown(args.num_sequences);
        break;
      case 5:
        Spoil(args.block_size);
        break;
      case 6:
        Spoil(args.padded_sequences);
        break;
      case 7:
        Spoil(args.table_columns);
        break;
    }
  }
  void ExpectRefused(const absl::Status& status) {
    if (Lacks(status)) return;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(" = "), absl::string_view::npos) << status;
  }
  // Runs body(seed) with random_ set, until a failure.
  template <typename Body>
  void ForSeeds(int64_t cases, const Body& body) {
    for (int64_t seed = FirstFuzzSeed(); seed < FirstFuzzSeed() + cases; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      random_ = Random(seed);
      body();
      if (HasFailure()) return;
    }
  }
};

// What ReshapeAndCache makes of a plane with these contents.
std::vector<std::byte> Written(std::vector<std::byte> bytes, const CachePlane& plane, bool is_key,
                               const float* x, int64_t stride, std::span<const int64_t> slots) {
  const int64_t size = SizeOf(plane.dtype);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0) continue;
    for (int64_t h = 0; h < plane.num_heads; ++h) {
      for (int64_t d = 0; d < plane.dim; ++d) {
        float value = x[i * stride + h * plane.dim + d];
        if (plane.num_scales > 0) value /= plane.scales[plane.num_scales == 1 ? 0 : h];
        const int64_t at =
            OffsetOf(plane, is_key, slots[i] / plane.block_size, h, slots[i] % plane.block_size, d);
        std::memcpy(&bytes[at * size], Encode(plane.dtype, {value}).data(), size);
      }
    }
  }
  return bytes;
}

TEST_P(CacheFuzzTest, ReshapeAndCacheWritesItsSlotsOrRefuses) {
  auto threaded = MakeFuzzed(GetParam(), 3);
  ForSeeds(10 * FuzzCases(), [&] {
    CacheShape shape = RandomShape();
    shape.is_key = true;
    TestCache k(shape, 1);
    shape.is_key = false;
    shape.dim = RandomDim(shape);
    TestCache v(shape, 2);
    const int64_t num_slots = shape.num_blocks * shape.block_size;
    std::vector<int64_t> slots = Permutation<int64_t>(num_slots);
    slots.resize(Below(num_slots + 1));
    for (int64_t& slot : slots) slot = Chance(20) ? -1 - Below(3) : slot;
    const int64_t k_row = shape.heads * k.shape().dim + Below(3);
    const int64_t v_row = shape.heads * v.shape().dim + Below(3);
    const std::vector<float> key = RandomFloats(3, k_row * std::ssize(slots));
    const std::vector<float> value = RandomFloats(4, v_row * std::ssize(slots));
    const std::vector<float> scales = {0.5f, 0.25f, 2.0f, 1.5f};
    ReshapeAndCacheArgs args{.key = key.data(),
                             .key_stride = k_row,
                             .value = value.data(),
                             .value_stride = v_row,
                             .slot_mapping = slots.data(),
                             .num_tokens = std::ssize(slots),
                             .k_cache = k.plane(),
                             .v_cache = v.plane()};
    if (IsFp8(shape.dtype) && Chance(60)) {
      args.k_cache.scales = args.v_cache.scales = scales.data();
      args.k_cache.num_scales = Chance(50) ? 1 : shape.heads;
      args.v_cache.num_scales = Chance(50) ? 1 : shape.heads;
    }
    const bool spoiled = Chance(60);
    if (spoiled) {
      SpoilWrite(args, slots, scales.data());
      // A slot twice has no one content.
      std::vector<int64_t> used = slots;
      std::sort(used.begin(), used.end());
      const auto first = std::lower_bound(used.begin(), used.end(), 0);
      if (std::adjacent_find(first, used.end()) != used.end()) return;
    }
    const std::vector<std::byte> k_before = k.bytes(), v_before = v.bytes();
    const absl::Status status = threaded->ReshapeAndCache(args);
    if (!HasRun(status)) {
      ASSERT_TRUE(spoiled || Lacks(status)) << status;
      ExpectRefused(status);
      EXPECT_EQ(k.bytes(), k_before);
      EXPECT_EQ(v.bytes(), v_before);
      return;
    }
    const std::span<const int64_t> written(slots.data(), args.num_tokens);
    EXPECT_EQ(k.bytes(),
              Written(k_before, args.k_cache, true, key.data(), args.key_stride, written));
    EXPECT_EQ(v.bytes(),
              Written(v_before, args.v_cache, false, value.data(), args.value_stride, written));
  });
}

TEST_P(CacheFuzzTest, CopyBlocksCopiesItsPairsOrRefuses) {
  ForSeeds(5 * FuzzCases(), [&] {
    const CacheShape shape = RandomShape();
    TestCache cache(shape, 1);
    // Sources are in the first half of a permutation, destinations in the second.
    const auto order = Permutation<int64_t>(shape.num_blocks);
    const int64_t half = 1 + Below(shape.num_blocks - 1);
    std::vector<BlockPair> pairs;
    for (int64_t i = half; i < shape.num_blocks; ++i) {
      pairs.push_back({order[Below(half)], order[i]});
    }
    CachePlane plane = cache.plane();
    const bool spoiled = Chance(40);
    if (spoiled) {
      BlockPair& pair = pairs[Below(std::ssize(pairs))];
      Chance(50) ? Spoil(pair.source) : Spoil(pair.destination);
    }
    TestCache expected = cache, before = cache;
    const absl::Status status = kernels_->CopyBlocks(
        {.planes = &plane, .num_planes = 1, .pairs = pairs.data(), .num_pairs = std::ssize(pairs)});
    if (!HasRun(status)) {
      ASSERT_TRUE(spoiled || Lacks(status)) << status;
      ExpectRefused(status);
    } else {
      for (const BlockPair& pair : pairs) {
        for (int32_t h = 0; h < shape.heads; ++h) {
          expected.SetHead(pair.destination, h, before, pair.source, h);
        }
      }
    }
    EXPECT_EQ(cache.bytes(), expected.bytes());
  });
}

TEST_P(CacheFuzzTest, SwapBlocksCopiesItsRunsOrRefuses) {
  ForSeeds(5 * FuzzCases(), [&] {
    const CacheShape shape = RandomShape();
    CacheShape other = shape;
    other.num_blocks = 2 + Below(6);
    other.gap = Below(4);
    HeadRun heads;
    if (Chance(50)) {
      other.heads = static_cast<int32_t>(1 + Below(4));
      heads.count = static_cast<int32_t>(1 + Below(std::min(shape.heads, other.heads)));
      heads.source = static_cast<int32_t>(Below(shape.heads - heads.count + 1));
      heads.destination = static_cast<int32_t>(Below(other.heads - heads.count + 1));
    }
    TestCache from(shape, 1), to(other, 2), expected = to;
    // The destinations of the second run are behind those of the first.
    BlockRun runs[2];
    int64_t free = 0;
    for (BlockRun& run : runs) {
      run.count = Below(std::min(shape.num_blocks, other.num_blocks - free) + 1);
      run.source = Below(shape.num_blocks - run.count + 1);
      run.destination = free + Below(other.num_blocks - free - run.count + 1);
      free = run.destination + run.count;
    }
    CachePlane source = from.plane(), destination = to.plane();
    const bool spoiled = Chance(50);
    if (spoiled) SpoilSwap(runs, heads, destination);
    const absl::Status status = kernels_->SwapBlocks({.sources = &source,
                                                      .destinations = &destination,
                                                      .num_planes = 1,
                                                      .runs = runs,
                                                      .num_runs = 2,
                                                      .heads = heads});
    if (!HasRun(status)) {
      ASSERT_TRUE(spoiled || Lacks(status)) << status;
      ExpectRefused(status);
    } else {
      const int32_t count = heads.count == 0 ? shape.heads : heads.count;
      for (const BlockRun& run : runs) {
        for (int64_t b = 0; b < run.count; ++b) {
          for (int32_t h = 0; h < count; ++h) {
            expected.SetHead(run.destination + b, heads.destination + h, from, run.source + b,
                             heads.source + h);
          }
        }
      }
    }
    EXPECT_EQ(to.bytes(), expected.bytes());
  });
}

TEST_P(CacheFuzzTest, ScatterRestoresWhatGatherTookOrBothRefuse) {
  ForSeeds(5 * FuzzCases(), [&] {
    const CacheShape shape = RandomShape();
    TestCache from(shape, 1), to(shape, 2), expected = to;
    auto blocks = Permutation<int32_t>(shape.num_blocks);
    blocks.resize(1 + Below(shape.num_blocks));
    int32_t num_heads = Chance(50) ? 0 : static_cast<int32_t>(1 + Below(shape.heads));
    int32_t first_head =
        num_heads == 0 ? 0 : static_cast<int32_t>(Below(shape.heads - num_heads + 1));
    const bool spoiled = Chance(40);
    if (spoiled) {
      const int64_t what = Below(3);
      if (what == 0) Spoil(blocks[Below(std::ssize(blocks))]);
      if (what == 1) Spoil(num_heads);
      if (what == 2) Spoil(first_head);
    }
    const int64_t heads = num_heads == 0 ? shape.heads : num_heads;
    const int64_t bytes = std::ssize(blocks) * std::clamp<int64_t>(heads, 0, shape.heads) *
                          shape.block_size * shape.dim * SizeOf(shape.dtype);
    std::vector<std::byte> staging(bytes, std::byte{0x5A});
    const std::vector<std::byte> canary = staging;
    const CachePlane source = from.plane(), target = to.plane();
    const absl::Status gather = kernels_->GatherBlocks({.planes = &source,
                                                        .num_planes = 1,
                                                        .blocks = blocks.data(),
                                                        .num_blocks = std::ssize(blocks),
                                                        .first_head = first_head,
                                                        .num_heads = num_heads,
                                                        .staging = staging.data(),
                                                        .staging_bytes = bytes});
    if (!HasRun(gather)) {
      ASSERT_TRUE(spoiled || Lacks(gather)) << gather;
      ExpectRefused(gather);
      EXPECT_EQ(staging, canary);
    }
    const absl::Status scatter = kernels_->ScatterBlocks({.planes = &target,
                                                          .num_planes = 1,
                                                          .blocks = blocks.data(),
                                                          .num_blocks = std::ssize(blocks),
                                                          .first_head = first_head,
                                                          .num_heads = num_heads,
                                                          .staging = staging.data(),
                                                          .staging_bytes = bytes});
    if (!HasRun(scatter)) {
      ASSERT_TRUE(spoiled || Lacks(scatter)) << scatter;
      ExpectRefused(scatter);
    } else {
      for (const int32_t block : blocks) {
        for (int64_t h = 0; h < heads; ++h) {
          expected.SetHead(block, first_head + h, from, block, first_head + h);
        }
      }
    }
    EXPECT_EQ(to.bytes(), expected.bytes());
  });
}

// One decode batch after another, built anew and moved on in place.
TEST_P(CacheFuzzTest, AdvanceStepAgreesWithBuildBatchOrRefuses) {
  ForSeeds(5 * FuzzCases(), [&] {
    const auto block_size = static_cast<int32_t>(1 + Below(9));
    const int32_t rows = static_cast<int32_t>(Below(5)),
                  padded = rows + static_cast<int32_t>(Below(3));
    const int32_t columns = static_cast<int32_t>(1 + Below(6));
    const auto pool = Permutation<int32_t>(rows * columns);
    std::vector<BatchSequence> sequences;
    for (int32_t i = 0; i < rows; ++i) {
      const auto context = static_cast<int32_t>(Below(columns * block_size));
      sequences.push_back({false, context, 1, pool.data() + i * columns, columns});
    }
    const auto build = [&] {
      return BuildBatch({.sequences = sequences.data(),
                         .num_sequences = rows,
                         .block_size = block_size,
                         .padded_sequences = padded,
                         .table_columns = columns});
    };
    absl::StatusOr<Batch> batch = build();
    ASSERT_TRUE(batch.ok()) << batch.status();
    std::vector<int32_t> tokens(padded, 5);
    AdvanceStepArgs args{.num_seqs = padded,
                         .num_queries = rows,
                         .block_size = block_size,
                         .sampled_tokens = tokens.data(),
                         .block_tables = batch->block_tables.data(),
                         .max_blocks = columns,
                         .tokens = tokens.data(),
                         .positions = batch->positions.data(),
                         .seq_lens = batch->seq_lens.data(),
                         .slot_mapping = batch->slot_mapping.data()};
    const bool spoiled = Chance(40);
    if (spoiled) SpoilStep(args);
    const Batch before = *batch;
    const absl::Status status = kernels_->AdvanceStep(args);
    if (!status.ok()) {
      ExpectRefused(status);
      EXPECT_EQ(batch->seq_lens, before.seq_lens);
      EXPECT_EQ(batch->positions, before.positions);
      EXPECT_EQ(batch->slot_mapping, before.slot_mapping);
      EXPECT_EQ(tokens, std::vector<int32_t>(padded, 5));
    }
    if (spoiled) return;
    for (BatchSequence& s : sequences) ++s.context_len;
    const absl::StatusOr<Batch> next = build();
    // Both see that a row is full.
    ASSERT_EQ(status.ok(), next.ok()) << status << next.status();
    if (!next.ok()) return;
    EXPECT_EQ(batch->seq_lens, next->seq_lens);
    EXPECT_EQ(batch->positions, next->positions);
    EXPECT_EQ(batch->slot_mapping, next->slot_mapping);
  });
}

TEST_P(CacheFuzzTest, BuildBatchGivesEachTokenItsSlotOrRefuses) {
  ForSeeds(10 * FuzzCases(), [&] {
    std::vector<BatchSequence> sequences(Below(5));
    std::vector<std::vector<int32_t>> blocks(sequences.size());
    BuildBatchArgs args{.num_sequences = static_cast<int32_t>(sequences.size()),
                        .block_size = static_cast<int32_t>(1 + Below(9)),
                        .prefills_first = Chance(50)};
    for (size_t i = 0; i < sequences.size(); ++i) {
      const bool prefill = Chance(50);
      const auto context = static_cast<int32_t>(Below(40));
      const auto queries = prefill ? static_cast<int32_t>(1 + Below(40)) : 1;
      blocks[i] = Permutation<int32_t>((context + queries - 1) / args.block_size + 1 + Below(3));
      sequences[i] = {prefill, context, queries, blocks[i].data(),
                      static_cast<int32_t>(blocks[i].size())};
    }
    args.sequences = sequences.data();
    const bool spoiled = Chance(50);
    if (spoiled) SpoilBatch(args, sequences, blocks);
    const absl::StatusOr<Batch> batch = BuildBatch(args);
    if (!batch.ok()) {
      ASSERT_TRUE(spoiled) << batch.status();
      return ExpectRefused(batch.status());
    }
    int32_t token = 0;
    for (size_t row = 0; row < batch->order.size(); ++row) {
      ASSERT_EQ(batch->query_start_loc[row], token);
      if (batch->order[row] < 0) {
        ASSERT_EQ(batch->slot_mapping[token++], -1);
        continue;
      }
      const BatchSequence& s = sequences[batch->order[row]];
      ASSERT_EQ(batch->context_lens[row], s.context_len);
      ASSERT_EQ(batch->seq_start_loc[row + 1] - batch->seq_start_loc[row], batch->seq_lens[row]);
      for (int32_t p = s.context_len; p < s.context_len + s.query_len; ++p, ++token) {
        const int32_t block = batch->block_tables[row * batch->max_blocks + p / args.block_size];
        ASSERT_EQ(batch->positions[token], p);
        ASSERT_EQ(block, s.blocks[p / args.block_size]);
        ASSERT_EQ(batch->slot_mapping[token],
                  int64_t{block} * args.block_size + p % args.block_size);
      }
    }
    ASSERT_EQ(batch->query_start_loc.back(), token);
    ASSERT_EQ(std::ssize(batch->slot_mapping), token);
    ASSERT_EQ(batch->num_prefill_tokens + batch->num_decode_tokens, token);
  });
}

BATON_FOR_EACH_FUZZED(CacheFuzzTest);

}  // namespace
}  // namespace baton
