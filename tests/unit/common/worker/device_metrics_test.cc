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

TEST(DeviceMetricsTest, ShowTimeAndMemory) {
  Metrics metrics("decode", "1");
  BusyTime busy(At(0));
  Time now = At(0);
  ExportBusyTime(&busy, [&] { return now; }, &metrics);
  ExportMemory({.total = 1000, .weights = 500, .workspace = 20, .kv_cache = 300}, &metrics);
  busy.Begin(At(1000));
  busy.End(At(2500));
  now = At(6000);
  const std::string text = metrics.Render();
  for (const char* line :
       {"baton_device_busy_seconds_total 1.5\n", "baton_device_utilization_ratio 0.25\n",
        "baton_device_memory_bytes 1000\n", "baton_device_memory_used_bytes{by=\"weights\"} 500\n",
        "baton_device_memory_used_bytes{by=\"kv_cache\"} 300\n",
        "baton_device_memory_used_bytes{by=\"workspace\"} 20\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace baton
