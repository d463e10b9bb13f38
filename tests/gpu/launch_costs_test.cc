// What it costs to start something on GPU 0: one line of JSON, microseconds. No verdict on them:
// figures of an emulated GPU say nothing about a real one.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "kernels/cuda/cuda_device.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

#if defined(BATON_CUDA_DEVICE)
constexpr int kLaunches = 1000;
#else
constexpr int kLaunches = 20;
#endif
constexpr auto kLimit = std::chrono::seconds(60);

template <typename T>
T Take(absl::StatusOr<T> value) {
  EXPECT_TRUE(value.ok()) << value.status();
  BATON_CHECK(value.ok());
  return *std::move(value);
}

class Costs {
 public:
  explicit Costs(Device* device)
      : device_(*device),
        host_(Take(device->Allocate(4096, MemoryKind::kPinned))),
        there_(Take(device->Allocate(4096, MemoryKind::kDevice))) {
    *host_.array<CopyPiece>() = {host_.data() + 1024, there_.data(), 8};
  }

  nlohmann::json Measure() {
    Each(kLaunches, [&] { Copy(); });  // What comes first loads things.
    nlohmann::json costs;
    const Time begin = SteadyNow();
    for (int i = 0; i < kLaunches; ++i) Copy();
    costs["host_per_launch"] = Microseconds(SteadyNow() - begin) / kLaunches;
    Quiet();
    costs["per_launch"] = Microseconds(SteadyNow() - begin) / kLaunches;
    costs["launch_to_done"] = Each(kLaunches, [&] {
      Copy();
      Quiet();
    });
    const auto graph = Take(device_.Capture([&] {
      for (int i = 0; i < kLaunches; ++i) Copy();
      return absl::OkStatus();
    }));
    const auto launch = [&] {
      BATON_CHECK(device_.Launch(*graph).ok());
      Quiet();
    };
    launch();
    costs["per_launch_in_graph"] = Each(5, launch) / kLaunches;
    return costs;
  }

 private:
  void Copy() {
    BATON_CHECK(device_.CopyPieces(Lane::kCompute, {host_.array<CopyPiece>(), 1}).ok());
  }
  void Quiet() {
    const Mark mark = Take(device_.MarkNow(Lane::kCompute));
    BATON_CHECK(Wait(device_, mark, kLimit).ok());
  }
  static double Microseconds(Duration d) { return 1e6 * ToSeconds(d); }
  template <typename Body>
  double Each(int times, const Body& body) {
    Quiet();
    const Time begin = SteadyNow();
    for (int i = 0; i < times; ++i) body();
    Quiet();
    return Microseconds(SteadyNow() - begin) / times;
  }

  Device& device_;
  const Buffer host_, there_;
};

TEST(LaunchCostsTest, EachIsMeasured) {
  const std::unique_ptr<Device> device = Take(MakeCudaDevice(0));
  nlohmann::json costs = Costs(device.get()).Measure();
  ASSERT_EQ(costs.size(), 4u);
  for (const auto& cost : costs) EXPECT_GT(cost.get<double>(), 0);
  costs["device"] = device->info().name;
  std::puts(costs.dump().c_str());
}

}  // namespace
}  // namespace baton
