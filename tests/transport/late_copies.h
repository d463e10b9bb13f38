#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "kernels/api/device.h"

namespace baton {

// A device that only copies, on one lane, and late: each copy runs, in the order of the lane, after
// a number of questions whether it is done that the seed draws; its list of pieces is read then.
// Pinned memory is poisoned at first. One thread.
class LateCopies : public Device {
 public:
  explicit LateCopies(uint64_t seed) : random_(seed) {}

  absl::StatusOr<Buffer> Allocate(int64_t bytes, MemoryKind kind) override;
  absl::Status CopyPieces(Lane lane, std::span<const CopyPiece> pieces) override;
  absl::StatusOr<Mark> MarkNow(Lane lane) override;
  absl::StatusOr<bool> IsDone(Mark mark) override;

  // What the next call says, or the one so many calls behind it.
  void FailNext(absl::Status status, int skip = 0) {
    error_ = std::move(status);
    skip_ = skip;
  }
  // From now on no copy runs, until Resume.
  void Hang() { hangs_ = true; }
  void Resume() { hangs_ = false; }
  int64_t copies() const { return copies_; }
  int64_t questions() const { return questions_; }

  const DeviceInfo& info() const override { return info_; }
  std::string Arithmetic(DType) const override { return "none"; }
  DType FastestCompute(DType weights) const override { return weights; }
  DType Activations(DType compute) const override { return compute; }
  absl::Status CheckModel(const ModelNeeds&) const override { return None(); }
  absl::StatusOr<DeviceMemory> Memory() const override { return None(); }
  absl::StatusOr<PackedMatrix> Pack(const PackWeightsArgs&) override { return None(); }
  ModelOps& ops() override { std::abort(); }
  absl::Status After(Lane, Mark) override { return None(); }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(absl::FunctionRef<absl::Status()>) override {
    return None();
  }
  absl::Status Launch(const Graph&) override { return None(); }
  absl::Status Synchronize() override { return None(); }

 private:
  absl::Status FailIfTold();
  static absl::Status None() { return absl::UnimplementedError("it only copies"); }

  DeviceInfo info_{.name = "late copies"};
  Random random_;
  std::deque<std::span<const CopyPiece>> queued_;
  bool hangs_ = false;
  int delay_ = 0;  // Questions until the first of them runs.
  uint64_t enqueued_ = 0;
  uint64_t done_ = 0;
  int64_t copies_ = 0;
  int64_t questions_ = 0;
  absl::Status error_;
  int skip_ = 0;  // Calls before that error.
};

}  // namespace baton
