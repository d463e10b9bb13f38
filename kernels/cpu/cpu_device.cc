#include "kernels/cpu/cpu_device.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/machine_share.h"
#include "kernels/api/attention_args.h"

namespace baton {
namespace {

// Below this a copy is done before another thread wakes.
constexpr int64_t kInlineCopyBytes = 1 << 17;

absl::Status NoGraphs() { return absl::UnimplementedError("a CPU has no graphs"); }

}  // namespace

absl::Status CpuDevice::CheckModel(const ModelNeeds& needs) const {
  if (needs.compute != DType::kF32 && needs.compute != DType::kBF16) {
    return absl::InvalidArgumentError(
        "compute_dtype = f16: CPUs compute in f32 or bf16; take another --compute-dtype, or a GPU "
        "by --device cuda");
  }
  if (needs.head_dim > kMaxAttentionDim) {
    return absl::InvalidArgumentError(absl::StrCat("head_dim = ", needs.head_dim,
                                                   ": CPUs serve up to ", kMaxAttentionDim));
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceMemory> CpuDevice::Memory() const {
  const MachineShare share = ReadMachineShare();
  return DeviceMemory{.total = share.memory_bytes(), .free = share.available_bytes};
}

absl::Status CpuDevice::CopyPieces(Lane, std::span<const CopyPiece> pieces) {
  int64_t bytes = 0;
  for (const CopyPiece& piece : pieces) bytes += piece.bytes;
  const auto copy = [&](int64_t i, int) {
    std::memcpy(pieces[i].to, pieces[i].from, static_cast<size_t>(pieces[i].bytes));
  };
  const auto count = static_cast<int64_t>(pieces.size());
  if (bytes >= kInlineCopyBytes) {
    kernels_->ParallelFor(count, copy);
  } else {
    for (int64_t i = 0; i < count; ++i) copy(i, 0);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Graph>> CpuDevice::Capture(absl::FunctionRef<absl::Status()>) {
  return NoGraphs();
}

absl::Status CpuDevice::Launch(const Graph&) { return NoGraphs(); }

}  // namespace baton
