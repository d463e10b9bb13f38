#include "common/worker/device_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace baton {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr Time At(int ms) { return Time{} + milliseconds(ms); }

TEST(BusyTimeTest, CountsStepsAndTheOneUnderWay) {
  BusyTime busy(At(0));
  EXPECT_EQ(busy.Total(At(50)), milliseconds(0));
  busy.Begin(At(100));
  EXPECT_EQ(busy.Total(At(130)), milliseconds(30));
  busy.End(At(150));
  EXPECT_EQ(busy.Total(At(900)), milliseconds(50));
  busy.Begin(At(1000));
  busy.End(At(1300));
  EXPECT_EQ(busy.Total(At(1300)), milliseconds(350));
}

TEST(BusyTimeTest, AScrapeThatLookedAtTheClockBeforeAStepBeganSeesNothingOfIt) {
  BusyTime busy(At(0));
  busy.Begin(At(0));
  busy.End(At(50));
  busy.Begin(At(100));
  EXPECT_EQ(busy.Total(At(90)), milliseconds(50));
  EXPECT_DOUBLE_EQ(busy.Share(At(40)), 1);  // 50 ms in 40: the clock is older than the step.
}

TEST(BusyTimeTest, TheShareIsThatOfTheTimeSinceTheLastLook) {
  BusyTime busy(At(0));
  busy.Begin(At(50));
  EXPECT_DOUBLE_EQ(busy.Share(At(100)), 0.5);
  EXPECT_DOUBLE_EQ(busy.Share(At(200)), 1);
  EXPECT_DOUBLE_EQ(busy.Share(At(200)), 0);  // No time has gone.
  busy.End(At(225));
  EXPECT_DOUBLE_EQ(busy.Share(At(300)), 0.25);
  EXPECT_DOUBLE_EQ(busy.Share(At(400)), 0);
}

TEST(DeviceMetricsTest, ShowWhatEachRankTakes) {
  const KvLayout layout{.block_size = 4,
                        .groups = {{.num_layers = 2, .num_kv_heads = 1, .k_dim = 8, .v_dim = 8}}};
  LoadedModel model;
  for (const int rank : {0, 1}) {
    LoadedRank& loaded = model.ranks.emplace_back();
    loaded.shape.rank = rank;
    loaded.weight_bytes = 100 + rank;
    loaded.cache = *KvCache::Create(layout, 3);
  }
  Metrics metrics("decode", "1");
  ExportRanks(model, &metrics);
  const std::string text = metrics.Render();
  for (const char* line : {"baton_rank_memory_bytes{rank=\"0\",by=\"weights\"} 100\n",
                           "baton_rank_memory_bytes{rank=\"1\",by=\"weights\"} 101\n",
                           // 3 blocks of 2 layers, K and V, 4 tokens, 8 floats.
                           "baton_rank_memory_bytes{rank=\"1\",by=\"kv_cache\"} 1536\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, ::testing::Not(HasSubstr("exchange")));  // There is nobody to wait for.
}

TEST(DeviceMetricsTest, ShowTimeAndMemory) {
  Metrics metrics("decode", "1");
  BusyTime busy(At(0));
  Time now = At(0);
  ExportBusyTime(&busy, [&] { return now; }, &metrics);
  LoadedModel model;
  for (const int rank : {0, 1}) {
    LoadedRank& loaded = model.ranks.emplace_back();
    loaded.shape.rank = rank;
    loaded.memory = {.total = 1000 + rank, .weights = 500, .workspace = 20, .kv_cache = 300 + rank};
  }
  ExportMemory(model, &metrics);
  busy.Begin(At(1000));
  busy.End(At(2500));
  now = At(6000);
  const std::string text = metrics.Render();
  for (const char* line :
       {"baton_device_busy_seconds_total 1.5\n", "baton_device_utilization_ratio 0.25\n",
        "baton_device_memory_bytes{rank=\"0\"} 1000\n",
        "baton_device_memory_bytes{rank=\"1\"} 1001\n",
        "baton_device_memory_used_bytes{rank=\"0\",by=\"weights\"} 500\n",
        "baton_device_memory_used_bytes{rank=\"1\",by=\"kv_cache\"} 301\n",
        "baton_device_memory_used_bytes{rank=\"1\",by=\"workspace\"} 20\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace baton
