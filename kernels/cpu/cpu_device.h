#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "kernels/api/device.h"
#include "kernels/cpu/cpu_kernels.h"

namespace baton {

// The process's own processor and memory: each call has ended when it returns, so that every mark
// is done.
class CpuDevice : public Device {
 public:
  // `kernels` outlives the device.
  explicit CpuDevice(CpuKernels* kernels)
      : kernels_(kernels), info_{.name = std::string(kernels->name()), .unified = true} {}

  const DeviceInfo& info() const override { return info_; }
  std::string Arithmetic(DType compute) const override {
    return std::string(kernels_->numerics(compute));
  }
  DType FastestCompute(DType weights) const override {
    return weights == DType::kBF16 && kernels_->has_bf16_dot() ? DType::kBF16 : DType::kF32;
  }
  DType Activations(DType) const override { return DType::kF32; }
  absl::Status CheckModel(const ModelNeeds& needs) const override;
  absl::StatusOr<DeviceMemory> Memory() const override;
  absl::StatusOr<Buffer> Allocate(int64_t bytes, MemoryKind) override {
    return AllocateHost(bytes);
  }
  absl::StatusOr<PackedMatrix> Pack(const PackWeightsArgs& args) override {
    return kernels_->PackWeights(args);
  }
  ModelOps& ops() override { return *kernels_; }
  OperatorLibrary& library() override { return *kernels_; }
  absl::Status CopyPieces(Lane lane, std::span<const CopyPiece> pieces) override;
  absl::StatusOr<Mark> MarkNow(Lane lane) override { return Mark{.lane = lane}; }
  absl::Status After(Lane, Mark) override { return absl::OkStatus(); }
  absl::StatusOr<bool> IsDone(Mark) override { return true; }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(
      absl::FunctionRef<absl::Status()> enqueue) override;
  absl::Status Launch(const Graph& graph) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  CpuKernels* const kernels_;
  const DeviceInfo info_;
};

}  // namespace baton
