// What op_cases.h asks of the GPU.
#include <algorithm>
#include <optional>

#include "common/base/status.h"
#include "kernels/cpu/check_args.h"
#include "kernels/cuda/norms.h"
#include "tests/kernels/cuda/device_fixture.h"
#include "tests/kernels/op_cases.h"

namespace baton {
namespace {

using cuda::DeviceFloats;

// Elements of the host on the device, as far from a multiple of 16 bytes as those are; null stays
// null.
class Copied {
 public:
  Copied(DType dtype, const float* host, int64_t n) {
    const size_t shift = reinterpret_cast<uintptr_t>(host) / sizeof(float) % 4;
    if (host != nullptr) floats_.emplace(dtype, std::vector<float>(host, host + n), shift);
  }
  Floats typed() const { return *floats_; }
  float* f32() const { return floats_.has_value() ? floats_->f32() : nullptr; }
  void CopyBack(float* host) const {
    const std::vector<float> values = floats_->Read();
    std::copy(values.begin(), values.end(), host);
  }

 private:
  std::optional<DeviceFloats> floats_;
};

int64_t EndOf(int64_t rows, int64_t stride, int64_t width) {
  return (rows - 1) * (stride == 0 ? width : stride) + width;
}

class DeviceOps : public CpuKernels {
 public:
  DeviceOps(DType in, DType out)
      : CpuKernels(*SelectKernelSet("portable"), 1), in_(in), out_(out) {}
  ~DeviceOps() override {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << emulation::LastMessage();
  }

  absl::Status RmsNorm(const RmsNormArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    RmsNormArgs args = host;
    const Copied residual(DType::kF32, host.residual,
                          EndOf(host.num_tokens, host.residual_stride, host.dim));
    args.residual = residual.f32();
    RETURN_IF_ERROR(Run(host, host.rows_per_token * host.dim, args, cuda::RmsNorm));
    if (host.residual != nullptr) residual.CopyBack(host.residual);
    return absl::OkStatus();
  }

  absl::Status LayerNorm(const LayerNormArgs& host) override {
    RETURN_IF_ERROR(CheckArgs(host));
    LayerNormArgs args = host;
    const Copied bias(DType::kF32, host.bias, host.dim);
    args.bias = bias.f32();
    return Run(host, host.dim, args, cuda::LayerNorm);
  }

 private:
  // What both norms have: rows of so many elements, in place where the host's are, and a weight.
  template <typename Args>
  absl::Status Run(const Args& host, int64_t width, Args args,
                   cudaError_t (*launch)(const Args& args, cudaStream_t stream)) const {
    const Copied x(in_, host.x.f32(), EndOf(host.num_tokens, host.x_stride, width));
    const Copied out(out_, host.out.f32(), EndOf(host.num_tokens, host.out_stride, width));
    const Copied weight(DType::kF32, host.weight, host.dim);
    args.x = host.x.f32() == host.out.f32() ? out.typed() : x.typed();
    args.out = out.typed();
    args.weight = weight.f32();
    if (launch(args, nullptr) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) {
      return absl::InternalError(emulation::LastMessage());
    }
    out.CopyBack(host.out.f32());
    return absl::OkStatus();
  }

  const DType in_, out_;
};

}  // namespace

std::vector<OpCase> OpCases() {
  std::vector<OpCase> cases;
  for (const cuda::DeviceCase& types : cuda::DeviceCases()) {
    cases.push_back({"cuda", types.in, types.out, types.seed});
  }
  return cases;
}

std::unique_ptr<CpuKernels> MakeOps(const OpCase& which) {
  emulation::ResetDevice();
  emulation::SetSeed(which.seed);
  return std::make_unique<DeviceOps>(which.in, which.out);
}

}  // namespace baton
