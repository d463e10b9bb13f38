#include "common/process/idle_heap.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <vector>

namespace baton {
namespace {

int64_t ResidentBytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// 96 MiB in pieces, of which one of each `live` lives on, the last one among them.
std::vector<std::unique_ptr<std::vector<char>>> Burst(int64_t piece_bytes = 32 << 10,
                                                      size_t live = 100) {
  std::vector<std::unique_ptr<std::vector<char>>> pieces((96 << 20) / piece_bytes);
  for (auto& piece : pieces) piece = std::make_unique<std::vector<char>>(piece_bytes, 'x');
  for (size_t i = 0; i < pieces.size(); ++i) {
    if ((pieces.size() - i) % live != 1) pieces[i].reset();
  }
  return pieces;
}

TEST(IdleHeapTest, WhatABurstLeavesGoesBackAtTheSecondLook) {
  const int64_t before = ResidentBytes();
  const auto live = Burst();
  IdleHeap heap(32 << 20);
  EXPECT_GT(ResidentBytes() - before, 64 << 20) << "the allocator keeps it";
  EXPECT_FALSE(heap.Look());
  EXPECT_TRUE(heap.Look());
  EXPECT_LT(ResidentBytes() - before, 16 << 20);
  EXPECT_FALSE(heap.Look()) << "what is gone is not given back again";
  EXPECT_FALSE(heap.Look());
}

// A page goes back whole or not at all.
TEST(IdleHeapTest, WhatDoesNotGoBackIsAskedForOnce) {
  const auto live = Burst(1 << 10, 3);
  IdleHeap heap(32 << 20);
  EXPECT_FALSE(heap.Look());
  EXPECT_TRUE(heap.Look());
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(heap.Look());
  const auto more = Burst();
  EXPECT_FALSE(heap.Look());
  EXPECT_TRUE(heap.Look()) << "what comes on top does";
}

TEST(IdleHeapTest, WhatIsInUseOrLessThanTheLimitStays) {
  const std::vector<char> used(96 << 20, 'x');
  IdleHeap heap(32 << 20);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(heap.Look());
  const auto live = Burst();
  IdleHeap patient(256 << 20);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(patient.Look());
}

}  // namespace
}  // namespace baton
