// The documented batches of the field, every number of every step: five prompts of 195 tokens
// (OPT-30b), and two of 484 under a budget of 512. The numbers are written by hand.
#include <numeric>

#include "kernels/api/batch_metadata.h"
#include "kernels/api/kv_cache_shape.h"
#include "tests/kernels/library_cases.h"

namespace baton {
namespace {

using Table = std::vector<int32_t>;
using SlotMapping = std::vector<int64_t>;

// first, first + step, ...
template <typename T>
std::vector<T> Sequence(T first, int64_t count, T step = 1) {
  std::vector<T> all(count);
  for (int64_t i = 0; i < count; ++i) all[i] = static_cast<T>(first + i * step);
  return all;
}

template <typename T>
std::vector<T> Join(std::initializer_list<std::vector<T>> parts) {
  std::vector<T> all;
  for (const std::vector<T>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// Blocks 999 downwards, 13 of 16 tokens for each prompt.
struct FivePrompts {
  Table table = Sequence(999, 65, -1);
  std::vector<BatchSequence> sequences;
  FivePrompts() {
    for (int64_t i = 0; i < 5; ++i) {
      sequences.push_back({true, 0, 195, table.data() + 13 * i, 13});
    }
  }
  Batch Build() const { return *BuildBatch({sequences.data(), 5, 16}); }
};

TEST(DocumentedBatchesTest, FivePromptsOf195TokensAreOnePrefillOf975) {
  const Batch batch = FivePrompts().Build();
  EXPECT_EQ(batch.num_prefills, 5);
  EXPECT_EQ(batch.num_prefill_tokens, 975);
  EXPECT_EQ(batch.num_decode_tokens, 0);
  EXPECT_EQ(batch.seq_lens, Table(5, 195));
  EXPECT_EQ(batch.context_lens, Table(5, 0));
  EXPECT_EQ(batch.query_start_loc, (Table{0, 195, 390, 585, 780, 975}));
  EXPECT_EQ(batch.seq_start_loc, (Table{0, 195, 390, 585, 780, 975}));
  EXPECT_EQ(batch.max_query_len, 195);
  EXPECT_EQ(batch.max_prefill_seq_len, 195);
  EXPECT_EQ(batch.max_decode_seq_len, 0);
  EXPECT_EQ(batch.max_decode_query_len, 0);
  EXPECT_EQ(batch.max_blocks, 13);
  EXPECT_EQ(batch.block_tables,
            (Table{999, 998, 997, 996, 995, 994, 993, 992, 991, 990, 989, 988, 987,    //
                   986, 985, 984, 983, 982, 981, 980, 979, 978, 977, 976, 975, 974,    //
                   973, 972, 971, 970, 969, 968, 967, 966, 965, 964, 963, 962, 961,    //
                   960, 959, 958, 957, 956, 955, 954, 953, 952, 951, 950, 949, 948,    //
                   947, 946, 945, 944, 943, 942, 941, 940, 939, 938, 937, 936, 935}));
  // The first slot of each prompt's first and last block; the last has three tokens.
  const int64_t firsts[] = {15984, 15776, 15568, 15360, 15152};
  const int64_t lasts[] = {15792, 15584, 15376, 15168, 14960};
  for (int64_t prompt = 0; prompt < 5; ++prompt) {
    for (int64_t i = 0; i < 195; ++i) {
      const int64_t wanted =
          i < 192 ? firsts[prompt] - i / 16 * 16 + i % 16 : lasts[prompt] + i - 192;
      ASSERT_EQ(batch.slot_mapping[prompt * 195 + i], wanted);
      ASSERT_EQ(batch.positions[prompt * 195 + i], i);
    }
  }
}

TEST(DocumentedBatchesTest, TheFivePromptsDecodeUntilTheirLastBlocksAreFull) {
  auto kernels = MakeBestLibrary();
  Batch batch = FivePrompts().Build();
  Table tokens(5);
  AdvanceBatchArgs args{.block_size = 16,
                        .sampled_tokens = tokens.data(),
                        .tokens = tokens.data(),
                        .turn_prefills_into_decodes = true};
  for (int32_t step = 0; step < 13; ++step) {
    ASSERT_TRUE(AdvanceBatch(*kernels, args, batch).ok());
    EXPECT_EQ(batch.slot_mapping, (SlotMapping{15795 + step, 15587 + step, 15379 + step,
                                               15171 + step, 14963 + step}));
    EXPECT_EQ(batch.positions, Table(5, 195 + step));
    EXPECT_EQ(batch.seq_lens, Table(5, 196 + step));
    EXPECT_EQ(batch.seq_start_loc, Sequence(0, 6, 196 + step));
    EXPECT_EQ(batch.query_start_loc, (Table{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(batch.num_decode_tokens, 5);
    EXPECT_EQ(batch.num_prefills, 0);
    EXPECT_EQ(batch.max_decode_seq_len, 196 + step);
    EXPECT_EQ(batch.max_prefill_seq_len, 0);
    EXPECT_EQ(batch.max_query_len, 1);
    EXPECT_EQ(batch.block_tables, Sequence(999, 65, -1));
    args.turn_prefills_into_decodes = false;
  }
  EXPECT_EQ(AdvanceBatch(*kernels, args, batch).message(),
            "seq_lens[0] = 208: must be in [0, 208): a row has max_blocks = 13 blocks");
}

// One head of prompt s, of which tokens 0 to 194 are K and V of rows 195 s and on, and the last of
// row 975 + s: sums of exp(score) * V in `sums`; returns that of exp(score).
double DecodeOfOpt30b(const float* q, const float* k, const float* v, int64_t s, int64_t row,
                      std::vector<double>& sums) {
  double sum = 0;
  for (int64_t j = 0; j < 196; ++j) {
    const int64_t at = (j < 195 ? s * 195 + j : 975 + s) * row;
    double x = 0;
    for (int64_t d = 0; d < 128; ++d) x += double{q[d]} * k[at + d];
    x = std::exp(x * 0.0883883);
    sum += x;
    for (int64_t d = 0; d < 128; ++d) sums[d] += x * v[at + d];
  }
  return sum;
}

// OPT-30b: 56 heads of 128, a scale of 0.0883883, a packed cache of f16. The prompts are written,
// become decodes, and attend in two passes. An emulated GPU has the time, and the memory, for four.
TEST(DocumentedBatchesTest, OneLayerOfOpt30bDecodesTheFivePrompts) {
  auto kernels = MakeBestLibrary(2);
  const int32_t heads = BestIsOfGpu() ? 4 : 56;
  const int64_t dim = 128, row = heads * dim;
  const KvCacheShapeArgs shape{.layout = CacheLayout::kPacked,
                               .dtype = DType::kF16,
                               .num_blocks = 1000,
                               .block_size = 16,
                               .num_kv_heads = heads,
                               .head_size = 128};
  EXPECT_EQ(*KvCacheShape(shape), (std::vector<int64_t>{2, 1000, 2048 * heads}));
  const int64_t bytes = int64_t{2} * 1000 * 2048 * heads * 2;
  const std::unique_ptr<std::byte[]> memory(new std::byte[bytes]);  // Touched where it is written.
  const SplitKvCacheResult cache = *SplitKvCache(shape, memory.get(), bytes);
  Batch batch = FivePrompts().Build();
  const std::vector<float> k = Rounded(DType::kF16, RandomFloats(1, 980 * row));
  const std::vector<float> v = Rounded(DType::kF16, RandomFloats(2, 980 * row));
  const auto write = [&](int64_t first) {
    ASSERT_TRUE(kernels
                    ->ReshapeAndCache({.key = k.data() + first * row,
                                       .key_stride = row,
                                       .value = v.data() + first * row,
                                       .value_stride = row,
                                       .slot_mapping = batch.slot_mapping.data(),
                                       .num_tokens = std::ssize(batch.slot_mapping),
                                       .k_cache = cache.k_cache,
                                       .v_cache = cache.v_cache})
                    .ok());
  };
  write(0);
  Table tokens(5);
  ASSERT_TRUE(AdvanceBatch(*kernels,
                           {.block_size = 16,
                            .sampled_tokens = tokens.data(),
                            .tokens = tokens.data(),
                            .turn_prefills_into_decodes = true},
                           batch)
                  .ok());
  write(975);
  const std::vector<float> q = Rounded(DType::kF16, RandomFloats(3, 5 * row));
  std::vector<float> out(5 * row), sums(5 * heads), maxima(sums), tmp_out(5 * row);
  ASSERT_TRUE(kernels
                  ->PagedAttention({.q = q.data(),
                                    .q_stride = row,
                                    .num_heads = heads,
                                    .num_seqs = 5,
                                    .block_tables = batch.block_tables.data(),
                                    .max_blocks = batch.max_blocks,
                                    .seq_lens = batch.seq_lens.data(),
                                    .max_seq_len = batch.max_decode_seq_len,
                                    .k_cache = cache.k_cache,
                                    .v_cache = cache.v_cache,
                                    .scores = {.scale = 0.0883883f},
                                    .split = AttentionSplit::kSplit,
                                    .partials = {sums.data(), maxima.data(), tmp_out.data(), 1},
                                    .out = out.data(),
                                    .out_stride = row})
                  .ok());
  for (int64_t s = 0; s < 5; ++s) {
    for (const int32_t h : {0, heads / 2 + 1, heads - 1}) {
      const float* query = &q[s * row + h * dim];
      std::vector<double> exact(dim);
      const double sum = DecodeOfOpt30b(query, &k[h * dim], &v[h * dim], s, row, exact);
      for (int64_t d = 0; d < dim; ++d) {
        ASSERT_NEAR(out[s * row + h * dim + d], exact[d] / sum, 2e-6);
      }
      ASSERT_NEAR(std::log(sums[s * heads + h]) + maxima[s * heads + h], std::log(sum), 1e-5);
    }
  }
}

// The first prompt has blocks 0 to 30, the second 31 to 61. A step has room for 512 tokens: all of
// the first prompt and 28 of the second, then 456 beside a decode, then two decodes.
class TwoPrompts : public testing::Test {
 protected:
  BatchSequence First(bool prefill, int32_t context, int32_t queries) const {
    return {prefill, context, queries, first_.data(), 31};
  }
  BatchSequence Second(bool prefill, int32_t context, int32_t queries) const {
    return {prefill, context, queries, second_.data(), 31,
            /*is_last_chunk=*/!prefill || context + queries == 484};
  }
  static Batch Build(const std::vector<BatchSequence>& sequences, bool prefills_first) {
    return *BuildBatch({.sequences = sequences.data(),
                        .num_sequences = 2,
                        .block_size = 16,
                        .prefills_first = prefills_first,
                        .table_columns = 31});
  }
  const Table first_ = Sequence(0, 31), second_ = Sequence(31, 31);
};

TEST_F(TwoPrompts, InTheFirstStepHaveAChunkOf28AndAllOf484) {
  const Batch batch = Build({Second(true, 0, 28), First(true, 0, 484)}, true);
  EXPECT_EQ(batch.num_prefills, 2);
  EXPECT_EQ(batch.num_unfinished_prefills, 1);
  EXPECT_EQ(batch.num_prefill_tokens, 512);
  EXPECT_EQ(batch.num_decode_tokens, 0);
  EXPECT_EQ(batch.seq_lens, (Table{28, 484}));
  EXPECT_EQ(batch.context_lens, (Table{0, 0}));
  EXPECT_EQ(batch.query_start_loc, (Table{0, 28, 512}));
  EXPECT_EQ(batch.seq_start_loc, (Table{0, 28, 512}));
  EXPECT_EQ(batch.max_query_len, 484);
  EXPECT_EQ(batch.max_prefill_seq_len, 484);
  EXPECT_EQ(batch.max_decode_seq_len, 0);
  EXPECT_EQ(batch.max_decode_query_len, 0);
  EXPECT_EQ(batch.slot_mapping,
            Join({Sequence<int64_t>(496, 28), Sequence<int64_t>(0, 484)}));
  EXPECT_EQ(batch.positions, Join({Sequence(0, 28), Sequence(0, 484)}));
  EXPECT_EQ(batch.block_tables, Join({second_, first_}));
  auto kernels = MakeBestLibrary();
  Batch advanced = batch;
  Table tokens(2);
  EXPECT_EQ(AdvanceBatch(*kernels, {16, tokens.data(), tokens.data(), true}, advanced).message(),
            "num_unfinished_prefills = 1: must be 0: a chunk that does not end its prompt gives no "
            "token");
}

TEST_F(TwoPrompts, InTheSecondStepHaveADecodeAndTheOther456) {
  const std::vector<BatchSequence> sequences = {First(false, 484, 1), Second(true, 28, 456)};
  const Batch given = Build(sequences, false);
  EXPECT_EQ(given.num_prefills, 1);
  EXPECT_EQ(given.num_unfinished_prefills, 0);
  EXPECT_EQ(given.num_prefill_tokens, 456);
  EXPECT_EQ(given.num_decode_tokens, 1);
  EXPECT_EQ(given.seq_lens, (Table{485, 484}));
  EXPECT_EQ(given.context_lens, (Table{484, 28}));
  EXPECT_EQ(given.query_start_loc, (Table{0, 1, 457}));
  EXPECT_EQ(given.seq_start_loc, (Table{0, 485, 969}));
  EXPECT_EQ(given.max_query_len, 456);
  EXPECT_EQ(given.max_prefill_seq_len, 484);
  EXPECT_EQ(given.max_decode_seq_len, 485);
  EXPECT_EQ(given.max_decode_query_len, 1);
  EXPECT_EQ(given.slot_mapping, Join({SlotMapping{484}, Sequence<int64_t>(524, 456)}));
  EXPECT_EQ(given.positions, Join({Table{484}, Sequence(28, 456)}));
  EXPECT_EQ(given.block_tables, Join({first_, second_}));

  const Batch batch = Build(sequences, true);
  EXPECT_EQ(batch.order, (Table{1, 0}));
  EXPECT_EQ(batch.seq_lens, (Table{484, 485}));
  EXPECT_EQ(batch.context_lens, (Table{28, 484}));
  EXPECT_EQ(batch.query_start_loc, (Table{0, 456, 457}));
  EXPECT_EQ(batch.seq_start_loc, (Table{0, 484, 969}));
  EXPECT_EQ(batch.slot_mapping, Join({Sequence<int64_t>(524, 456), SlotMapping{484}}));
  EXPECT_EQ(batch.block_tables, Join({second_, first_}));
  const Batch prefill = *PrefillMetadata(batch), decode = *DecodeMetadata(batch);
  EXPECT_EQ(prefill.query_start_loc, (Table{0, 456}));
  EXPECT_EQ(prefill.seq_start_loc, (Table{0, 484}));
  EXPECT_EQ(prefill.block_tables, second_);
  EXPECT_EQ(prefill.max_query_len, 456);
  EXPECT_EQ(decode.query_start_loc, (Table{0, 1}));
  EXPECT_EQ(decode.seq_start_loc, (Table{0, 485}));
  EXPECT_EQ(decode.slot_mapping, SlotMapping{484});
  EXPECT_EQ(decode.block_tables, first_);
  EXPECT_EQ(decode.max_query_len, 1);
}

TEST_F(TwoPrompts, InTheThirdStepBothDecodeWhetherBuiltAnewOrAdvanced) {
  const auto expect = [&](const Batch& batch) {
    EXPECT_EQ(batch.num_prefills, 0);
    EXPECT_EQ(batch.num_prefill_tokens, 0);
    EXPECT_EQ(batch.num_decode_tokens, 2);
    EXPECT_EQ(batch.seq_lens, (Table{486, 485}));
    EXPECT_EQ(batch.context_lens, (Table{485, 484}));
    EXPECT_EQ(batch.positions, (Table{485, 484}));
    EXPECT_EQ(batch.query_start_loc, (Table{0, 1, 2}));
    EXPECT_EQ(batch.seq_start_loc, (Table{0, 486, 971}));
    EXPECT_EQ(batch.slot_mapping, (SlotMapping{485, 980}));
    EXPECT_EQ(batch.max_query_len, 1);
    EXPECT_EQ(batch.max_prefill_seq_len, 0);
    EXPECT_EQ(batch.max_decode_seq_len, 486);
    EXPECT_EQ(batch.max_decode_query_len, 1);
    EXPECT_EQ(batch.block_tables, Join({first_, second_}));
  };
  expect(Build({First(false, 485, 1), Second(false, 484, 1)}, true));
  auto kernels = MakeBestLibrary();
  Batch batch = Build({First(false, 484, 1), Second(true, 28, 456)}, false);
  Table tokens(2);
  ASSERT_TRUE(AdvanceBatch(*kernels, {16, tokens.data(), tokens.data(), true}, batch).ok());
  expect(batch);
}

}  // namespace
}  // namespace baton
