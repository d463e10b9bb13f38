// Worked examples of the field's documentation that take several operators. Those of one operator
// stand in its test (api/batch_test.cc, advance_step_test.cc) and the block allocator of 256
// tokens in tests/unit/common/kv_cache/block_manager_test.cc.
#include "common/kv_cache/block_manager.h"
#include "tests/kernels/cache_layouts.h"
#include "tests/kernels/library_cases.h"

namespace baton {
namespace {

// K [blocks, heads, dim / 8, 16, 8] and V [blocks, heads, dim, 16] of f16, the memory
// uninitialised: only what is touched takes room.
void ExpectOptShapes(int32_t heads, int32_t dim, int64_t blocks) {
  auto kernels = MakeBestLibrary();
  const int64_t block = int64_t{heads} * dim * 16;
  const std::unique_ptr<std::byte[]> memory(new std::byte[2 * blocks * block * 2]);
  // One tensor [2, blocks, 16 * heads * dim] makes both planes.
  CachePlane k{.data = memory.get(),
               .dtype = DType::kF16,
               .layout = CacheLayout::kPacked,
               .num_blocks = blocks,
               .num_heads = heads,
               .block_size = 16,
               .dim = dim,
               .block_stride = block};
  CachePlane v = k;
  v.data += blocks * block * 2;
  const std::vector<float> key = RandomFloats(1, heads * dim), value = RandomFloats(2, heads * dim);
  const int64_t slot = blocks * 16 - 3, offset = 13;
  ReshapeAndCacheArgs args{.key = key.data(),
                           .key_stride = heads * dim,
                           .value = value.data(),
                           .value_stride = heads * dim,
                           .slot_mapping = &slot,
                           .num_tokens = 1,
                           .k_cache = k,
                           .v_cache = v};
  ASSERT_TRUE(kernels->ReshapeAndCache(args).ok());
  const std::vector<std::byte> k_codes = Encode(DType::kF16, key);
  const std::vector<std::byte> v_codes = Encode(DType::kF16, value);
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t d = 0; d < dim; ++d) {
      const int64_t k_at =
          ((((blocks - 1) * heads + h) * (dim / 8) + d / 8) * 16 + offset) * 8 + d % 8;
      const int64_t v_at = (((blocks - 1) * heads + h) * dim + d) * 16 + offset;
      EXPECT_EQ(std::memcmp(k.data + 2 * k_at, &k_codes[2 * (h * dim + d)], 2), 0);
      EXPECT_EQ(std::memcmp(v.data + 2 * v_at, &v_codes[2 * (h * dim + d)], 2), 0);
    }
  }
  const int64_t past = blocks * 16;
  args.slot_mapping = &past;
  EXPECT_EQ(
      kernels->ReshapeAndCache(args).message(),
      "slot_mapping[0] = " + std::to_string(past) + ": must be less than " + std::to_string(past));
}

// An emulated GPU has fewer of them.
TEST(WorkedExamplesTest, Opt125mHas7281PackedBlocksOf12HeadsOf64) {
  ExpectOptShapes(12, 64, BestIsOfGpu() ? 100 : 7281);
}

TEST(WorkedExamplesTest, Opt30bHasPackedBlocksOf56HeadsOf128) {
  ExpectOptShapes(56, 128, BestIsOfGpu() ? 100 : 7281);
}

TEST(WorkedExamplesTest, ForkedSequencesWriteToCopiesOfTheirSharedBlock) {
  auto kernels = MakeBestLibrary();
  for (const CacheLayout layout : {CacheLayout::kHnd, CacheLayout::kNhd, CacheLayout::kPacked}) {
    SCOPED_TRACE(NameOf(layout));
    CacheShape shape{.layout = layout, .num_blocks = 8};
    TestCache k(shape, 1);
    shape.is_key = false;
    TestCache v(shape, 2);
    const CachePlane planes[] = {k.plane(), v.plane()};
    BlockAllocator pool(8, 4, 1);
    BlockManager manager(&pool);
    const int64_t row = shape.heads * shape.dim;
    // Token i of a sequence has K and V of 100 * sequence + i.
    const auto append = [&](int64_t sequence, int32_t first, int32_t count) {
      const auto tokens = manager.Append(sequence, count);
      ASSERT_TRUE(tokens.ok()) << tokens.status();
      if (tokens->copy) {
        ASSERT_TRUE(
            kernels
                ->CopyBlocks(
                    {.planes = planes, .num_planes = 2, .pairs = &*tokens->copy, .num_pairs = 1})
                .ok());
      }
      std::vector<float> x;
      for (int32_t i = 0; i < count; ++i) {
        x.insert(x.end(), row, static_cast<float>(100 * sequence + first + i));
      }
      ASSERT_TRUE(kernels
                      ->ReshapeAndCache({.key = x.data(),
                                         .key_stride = row,
                                         .value = x.data(),
                                         .value_stride = row,
                                         .slot_mapping = tokens->slots.data(),
                                         .num_tokens = count,
                                         .k_cache = planes[0],
                                         .v_cache = planes[1]})
                      .ok());
    };
    append(1, 0, 6);
    ASSERT_TRUE(manager.Fork(1, 2).ok());
    ASSERT_TRUE(manager.Fork(2, 3).ok());
    for (const int64_t sequence : {2, 3, 1}) append(sequence, 6, 3);
    for (const int64_t sequence : {1, 2, 3}) {
      const std::vector<BlockId> blocks = manager.Blocks(sequence);
      ASSERT_EQ(blocks.size(), 3);
      for (int32_t i = 0; i < 9; ++i) {
        const auto wanted = static_cast<float>(i < 6 ? 100 + i : 100 * sequence + i);
        for (TestCache* plane : {&k, &v}) {
          float got;
          std::memcpy(&got, plane->At(blocks[i / 4], 2, i % 4, 15), 4);
          EXPECT_EQ(got, wanted) << "sequence " << sequence << " token " << i;
        }
      }
    }
    // Block 0 is shared by three, the other two blocks of each are its own.
    EXPECT_EQ(pool.num_available(), 8 - 1 - 3 * 2);
  }
}

}  // namespace
}  // namespace baton
