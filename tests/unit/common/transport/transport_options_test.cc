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
                           .place = {3, 4},
                           .kv_heads = 8};
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
  options.place = {};
  options.kv_heads = 0;  // The only rank holds all.
  EXPECT_TRUE(Validate(options).ok());
  EXPECT_EQ(ShapeOf(options).heads, (HeadRange{0, 2}));
}

TEST(TransportOptionsTest, ARankHoldsItsPartOfTheHeads) {
  const KvLayout layout{.block_size = 8,
                        .groups = {{.num_layers = 1, .num_kv_heads = 2, .k_dim = 4, .v_dim = 4}}};
  auto cache = *KvCache::Create(layout, 4);
  BlockEpochs epochs(4);
  TransportOptions options{
      .incarnation = 1, .cache = cache.get(), .epochs = &epochs, .sink = [](TransferEvent) {}};
  struct Row {
    RankPlace place;
    int32_t kv_heads;
    bool good;
  };
  for (const auto& [place, kv_heads, good] :
       {Row{{0, 1}, 2, true}, Row{{1, 2}, 4, true}, Row{{0, 1}, 4, false}, Row{{0, 2}, 0, false},
        Row{{0, 2}, 2, false}, Row{{2, 2}, 4, false}, Row{{-1, 2}, 4, false},
        Row{{0, 3}, 4, false}, Row{{0, 0}, 2, false}, Row{{0, 16}, 32, false}}) {
    options.place = place;
    options.kv_heads = kv_heads;
    EXPECT_EQ(Validate(options).ok(), good)
        << place.rank << " of " << place.size << ", " << kv_heads;
  }
}

}  // namespace
}  // namespace baton
