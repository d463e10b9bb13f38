#include "common/http/http_body.h"

#include <gtest/gtest.h>

namespace baton::http {
namespace {

using Room = BodyMeter::Room;

TEST(BodyMeterTest, CountsWhatIsHeldOfEachClientAndOfAll) {
  BodyMeter meter(/*max_bytes=*/100, /*max_client_bytes=*/40);
  EXPECT_EQ(meter.Add("a", 40), Room::kEnough);
  EXPECT_EQ(meter.Add("a", 1), Room::kClientIsFull);
  EXPECT_EQ(meter.Add("b", 41), Room::kClientIsFull);
  EXPECT_EQ(meter.Add("b", 40), Room::kEnough);
  EXPECT_EQ(meter.Add("c", 21), Room::kServerIsFull);
  EXPECT_EQ(meter.Add("c", 20), Room::kEnough);
  EXPECT_EQ(meter.total(), 100);
  EXPECT_EQ(meter.Add("d", 1), Room::kServerIsFull);
  meter.Release("a", 30);
  EXPECT_EQ(meter.Add("a", 31), Room::kServerIsFull);
  EXPECT_EQ(meter.Add("a", 30), Room::kEnough);
  EXPECT_EQ(meter.Add("a", 0), Room::kEnough);
  meter.Release("a", 40);
  meter.Release("b", 40);
  meter.Release("c", 20);
  meter.Release("nobody", 0);
  EXPECT_EQ(meter.total(), 0);
  EXPECT_EQ(meter.Add("a", 40), Room::kEnough);
}

TEST(BodyMeterTest, RemembersNobodyWhoHoldsNothing) {
  BodyMeter meter(/*max_bytes=*/100, /*max_client_bytes=*/40);
  EXPECT_EQ(meter.Add("silent", 0), Room::kEnough);
  meter.Release("silent", 0);
  EXPECT_EQ(meter.Add("greedy", 41), Room::kClientIsFull);
  EXPECT_EQ(meter.num_clients(), 0);
  EXPECT_EQ(meter.Add("a", 40), Room::kEnough);
  EXPECT_EQ(meter.num_clients(), 1);
  meter.Release("a", 40);
  EXPECT_EQ(meter.num_clients(), 0);
}

}  // namespace
}  // namespace baton::http
