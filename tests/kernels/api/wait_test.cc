#include <gtest/gtest.h>

#include <chrono>
#include <optional>

#include "common/base/clock.h"
#include "kernels/api/device.h"

namespace baton {
namespace {

using std::chrono::milliseconds;

// Only answers whether a mark is done.
class AnsweringDevice : public Device {
 public:
  int asked = 0;
  int done_after = 0;  // So many questions.
  std::optional<absl::Status> error;
  int given_up = 0;

  absl::StatusOr<bool> IsDone(Mark) override {
    ++asked;
    if (error.has_value()) return *error;
    return asked > done_after;
  }

  const DeviceInfo& info() const override { return info_; }
  std::string Arithmetic(DType) const override { return ""; }
  DType FastestCompute(DType weights) const override { return weights; }
  DType Activations(DType compute) const override { return compute; }
  absl::Status CheckModel(const ModelNeeds&) const override { return absl::OkStatus(); }
  absl::StatusOr<DeviceMemory> Memory() const override { return DeviceMemory{}; }
  absl::StatusOr<Buffer> Allocate(int64_t, MemoryKind) override { return Buffer(); }
  absl::StatusOr<PackedMatrix> Pack(const PackWeightsArgs&) override { return PackedMatrix(); }
  ModelOps& ops() override { std::abort(); }
  OperatorLibrary& library() override { std::abort(); }
  absl::Status CopyPieces(Lane, std::span<const CopyPiece>) override { return absl::OkStatus(); }
  absl::StatusOr<Mark> MarkNow(Lane) override { return Mark{}; }
  absl::Status After(Lane, Mark) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(absl::FunctionRef<absl::Status()>) override {
    return absl::UnimplementedError("");
  }
  absl::Status Launch(const Graph&) override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  void GiveUp() override { ++given_up; }

 private:
  DeviceInfo info_{.name = "answering", .limit = milliseconds(30)};
};

TEST(WaitTest, AsksUntilTheMarkIsDone) {
  AnsweringDevice device;
  EXPECT_TRUE(Wait(device, {}, milliseconds(0)).ok());
  EXPECT_EQ(device.asked, 1);
  device.done_after = 100;
  EXPECT_TRUE(Wait(device, {}, std::chrono::hours(1)).ok());
  EXPECT_EQ(device.asked, 101);
  EXPECT_EQ(device.given_up, 0);
}

TEST(WaitTest, AMarkThatNeverComesIsAnErrorAfterTheLimit) {
  AnsweringDevice device;
  device.done_after = 1 << 30;
  const Time begin = SteadyNow();
  const absl::Status status = Wait(device, {}, milliseconds(20));
  EXPECT_GE(SteadyNow() - begin, milliseconds(20));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "answering has not ended its work within 20 ms");
  EXPECT_EQ(device.given_up, 1);
  EXPECT_EQ(Wait(device, {}).message(), "answering has not ended its work within 30 ms");
  EXPECT_EQ(device.given_up, 2);
}

TEST(WaitTest, AnErrorOfTheDeviceEndsItAtOnce) {
  AnsweringDevice device;
  device.error = absl::UnavailableError("lost");
  EXPECT_EQ(Wait(device, {}, std::chrono::hours(1)).message(), "lost");
  EXPECT_EQ(device.asked, 1);
  EXPECT_EQ(device.given_up, 0);
}

}  // namespace
}  // namespace baton
