// What calls of NCCL cost that take long, by a clock of the test.


#include <chrono>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/transport/nccl/communicators.h"
#include "gtest/gtest.h"
#include "kernels/make_device.h"
#include "tests/transport/nccl/gpu_endpoint.h"

namespace baton::nccl {
namespace {

using EventKind = Communicators::Event::Kind;

constexpr Duration kSlice = std::chrono::milliseconds(100);

class NcclCommunicatorsTest : public testing::Test {
 protected:
  void SetUp() override {
    ConfigureEmulatedNccl("");
    gpu_ = *MakeDevice({.device = "cuda:0"});
    communicators_ = std::make_unique<Communicators>(
        *Library::Open(BATON_EMULATED_NCCL_LIBRARY), *gpu_.device,
        Communicators::Options{.abort_limit = 20 * kSlice},
        [](const absl::Status& status) { ADD_FAILURE() << status; });
  }
  void TearDown() override { ConfigureEmulatedNccl(""); }

  void AwaitSize(int pairs) {
    const auto is_there = [&]() -> absl::StatusOr<bool> {
      communicators_->Turn(Duration::zero());
      return communicators_->size() <= pairs;
    };
    EXPECT_TRUE(WaitUntil("NCCL", std::chrono::seconds(60), is_there).ok());
  }
  void MakeAll(int pairs) {
    for (PairId pair = 0; pair < pairs; ++pair) communicators_->Make(pair);
    int made = 0;
    const auto are_made = [&]() -> absl::StatusOr<bool> {
      for (const auto& event : communicators_->Turn(Duration::zero())) {
        made += event.kind == EventKind::kMade ? 1 : 0;
      }
      return made == pairs;
    };
    EXPECT_TRUE(WaitUntil("NCCL", std::chrono::seconds(60), are_made).ok());
  }

  Processors gpu_;
  std::unique_ptr<Communicators> communicators_;
};

// Three quarters of the limit pass in each of them.
TEST_F(NcclCommunicatorsTest, SlowAbortsBehindEachOtherAreNotTakenForOneThatHangs) {
  constexpr int kPairs = 4;
  MakeAll(kPairs);
  ConfigureEmulatedNccl("abort=slow abort_ms=150");
  for (PairId pair = 0; pair < kPairs; ++pair) communicators_->Kill(pair);
  for (int left = kPairs; left > 0; --left) {
    for (int i = 0; i < 15 && communicators_->size() == left; ++i) communicators_->Turn(kSlice);
    AwaitSize(left - 1);
  }
  EXPECT_FALSE(communicators_->stuck());
}

TEST_F(NcclCommunicatorsTest, BehindAnAbortThatHangsTheOthersAreGivenUpInTime) {
  constexpr int kPairs = 3;
  MakeAll(kPairs);
  ConfigureEmulatedNccl("abort=hang");
  for (PairId pair = 0; pair < kPairs; ++pair) communicators_->Kill(pair);
  for (int i = 0; i <= 40; ++i) communicators_->Turn(kSlice);
  EXPECT_TRUE(communicators_->stuck());
  EXPECT_EQ(communicators_->size(), 0) << "after twice the limit";
}

}  // namespace
}  // namespace baton::nccl
