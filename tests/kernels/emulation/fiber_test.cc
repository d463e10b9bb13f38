#include "kernels/emulation/fiber.h"

#include <gtest/gtest.h>

#include <vector>

namespace baton::emulation {
namespace {

Fiber host, first, second;
std::vector<int> steps;
double result = 0;

void FirstMain() {
  volatile double x = 1.5;  // Survives the switch.
  steps.push_back(1);
  first.SwitchTo(second);
  steps.push_back(3);
  result = x * 2;
  first.SwitchTo(host);
}

void SecondMain() {
  alignas(16) char aligned[16];
  EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned) % 16, 0u);
  steps.push_back(2);
  second.SwitchTo(first);
}

TEST(FiberTest, SwitchesBackToWhereItLeft) {
  first.Start(&FirstMain, 0);
  second.Start(&SecondMain, 64);
  host.SwitchTo(first);
  EXPECT_EQ(steps, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(result, 3.0);
}

TEST(FiberTest, StartsAnewWhatWasLeft) {
  steps.clear();
  first.Start(&FirstMain, 0);
  second.Start(&SecondMain, 0);
  host.SwitchTo(first);
  EXPECT_EQ(steps, (std::vector<int>{1, 2, 3}));
}

}  // namespace
}  // namespace baton::emulation
