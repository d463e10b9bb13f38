#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "kernels/api/device.h"

namespace baton {

// What a device has to say that only moves K/V, for those that tests make: it computes nothing.
class CopyingDevice : public Device {
 public:
  explicit CopyingDevice(std::string name) : info_{.name = std::move(name)} {}

  const DeviceInfo& info() const override { return info_; }
  std::string Arithmetic(DType) const override { return "none"; }
  DType FastestCompute(DType weights) const override { return weights; }
  DType Activations(DType compute) const override { return compute; }
  absl::Status CheckModel(const ModelNeeds&) const override { return None(); }
  absl::StatusOr<DeviceMemory> Memory() const override { return None(); }
  absl::StatusOr<PackedMatrix> Pack(const PackWeightsArgs&) override { return None(); }
  ModelOps& ops() override { std::abort(); }
  OperatorLibrary& library() override { std::abort(); }
  absl::Status After(Lane, Mark) override { return None(); }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(absl::FunctionRef<absl::Status()>) override {
    return None();
  }
  absl::Status Launch(const Graph&) override { return None(); }
  absl::Status Synchronize() override { return None(); }

 protected:
  static absl::Status None() { return absl::UnimplementedError("it only moves K/V"); }

 private:
  const DeviceInfo info_;
};

}  // namespace baton
