#include "common/transport/transport_options.h"

#include "gtest/gtest.h"
#include "tests/transport/late_stager.h"

namespace baton {
namespace {

TEST(TransportOptionsTest, NamesWhatIsMissing) {
  const KvLayout layout{.block_size = 8,
                        .groups = {{.num_layers = 1, .num_kv_heads = 2, .k_dim = 4, .v_dim = 4}}};
  auto cache = *KvCache::Create(layout, 4);
  BlockEpochs epochs(4);
  BlockEpochs few(3);
  TransportOptions options{.incarnation = 1,
                           .cache = cache.get(),
                           .epochs = &epochs,
                           .sink = [](TransferEvent) {},
                           .first_head = 6};
  EXPECT_TRUE(Validate(options).ok());
  EXPECT_EQ(ShapeOf(options).block_size, 8);
  EXPECT_EQ(ShapeOf(options).heads.first, 6);
  EXPECT_EQ(ShapeOf(options).heads.count, 2);
  TransportOptions bad = options;
  bad.incarnation = 0;
  EXPECT_EQ(Validate(bad).code(), absl::StatusCode::kInvalidArgument);
  bad = options;
  bad.sink = nullptr;
  EXPECT_FALSE(Validate(bad).ok());
  bad = options;
  bad.epochs = &few;
  EXPECT_FALSE(Validate(bad).ok());
  for (int field = 0; field < 3; ++field) {
    bad = options;
    if (field == 0) bad.cache = nullptr;
    if (field == 1) bad.epochs = nullptr;
    if (field == 2) bad.max_frame_bytes = 0;
    EXPECT_EQ(Validate(bad).code(), absl::StatusCode::kInvalidArgument) << field;
  }
  auto device =
      *KvCache::Create(layout, 4, Buffer(cache->base(), *KvCache::PoolBytes(layout, 4), {}),
                       /*host=*/false);
  bad = options;
  bad.cache = device.get();
  EXPECT_EQ(Validate(bad).code(), absl::StatusCode::kInvalidArgument);
  LateStager stager(device->base(), {});
  bad.stager = &stager;
  EXPECT_TRUE(Validate(bad).ok());
  bad = options;
  bad.max_frame_bytes = kMaxDataPayloadBytes + 1;
  EXPECT_FALSE(Validate(bad).ok());
}

}  // namespace
}  // namespace baton
