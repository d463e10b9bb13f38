#include "tests/kernels/api/shapes_fixture.h"

namespace baton {
namespace {

TEST(CheckCacheShapesTest, WritesAreCheckedWithoutTheirMemory) {
  for (const DType dtype : {DType::kBF16, DType::kFp8E4M3}) {
    const ReshapeAndCacheArgs args{.key = Input(),
                                   .key_stride = 16,
                                   .value = Input(),
                                   .value_stride = 16,
                                   .slot_mapping = Nowhere<const int64_t>(),
                                   .num_tokens = 3,
                                   .k_cache = DevicePlane(dtype),
                                   .v_cache = DevicePlane(dtype)};
    ExpectRefused(args, [](auto& a) { a.key_stride = 15; }, "key_stride = 15");
    ExpectRefused(args, [](auto& a) { a.slot_mapping = nullptr; }, "slot_mapping = null");
    ExpectRefused(args, [](auto& a) { a.v_cache.num_scales = 3; }, "v_cache.num_scales = 3");
    ExpectRefused(args, [](auto& a) { a.key.dtype = DType::kFp8E4M3; }, "key.dtype");
    ExpectRefused(args, [](auto& a) { a.value.dtype = DType::kFp8E4M3; }, "value.dtype");
  }
}

TEST(CheckCacheShapesTest, MovesOfBlocksAreCheckedWithoutTheirMemory) {
  const CachePlane planes[] = {DevicePlane(DType::kFp8E4M3)};
  CachePlane other[] = {DevicePlane(DType::kFp8E4M3)};
  other[0].data += 1 << 20;
  const CopyBlocksArgs copy{
      .planes = planes, .num_planes = 1, .pairs = Nowhere<const BlockPair>(), .num_pairs = 2};
  ExpectRefused(copy, [](auto& a) { a.pairs = nullptr; }, "pairs = null");
  const SwapBlocksArgs swap{.sources = planes,
                            .destinations = other,
                            .num_planes = 1,
                            .runs = Nowhere<const BlockRun>(),
                            .num_runs = 2};
  ExpectRefused(swap, [](auto& a) { a.destinations = a.sources; }, "must be memory of its own");
  ExpectRefused(swap, [](auto& a) { a.heads.count = 3; }, "heads.count = 3");
  const int64_t bytes = 3 * 2 * 16 * 8;
  const GatherBlocksArgs gather{.planes = planes,
                                .num_planes = 1,
                                .blocks = Nowhere<const int32_t>(),
                                .num_blocks = 3,
                                .staging = Nowhere<std::byte>(),
                                .staging_bytes = bytes};
  ExpectRefused(gather, [](auto& a) { --a.staging_bytes; }, "staging_bytes");
  const ScatterBlocksArgs scatter{.planes = planes,
                                  .num_planes = 1,
                                  .blocks = Nowhere<const int32_t>(),
                                  .num_blocks = 3,
                                  .staging = Nowhere<const std::byte>(),
                                  .staging_bytes = bytes};
  ExpectRefused(scatter, [](auto& a) { a.first_head = 1; }, "first_head = 1");
}

}  // namespace
}  // namespace baton
