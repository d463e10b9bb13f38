#include "tests/gpu/bench/gpu_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/gemm_sm90.h"
#include "tests/gpu/bench/tensor_peak.h"

namespace baton::bench {
namespace {

GpuTimer::Options TimerOptions(bool quick) {
  if (quick) return {.seconds = 0, .most_calls = 1, .repeats = 1};
  return {};
}

// Four bf16, or eight fp8: signs and mantissas at random, exponents that keep sums finite.
uint64_t RandomBits(Random& random, DType dtype) {
  const uint64_t bits = random.Next();
  if (dtype == DType::kBF16) return (bits & 0x807f807f807f807full) | 0x3b803b803b803b80ull;
  return (bits & 0x8787878787878787ull) | 0x3030303030303030ull;
}

cudaStream_t ComputeStream(Device& device) {
  const absl::StatusOr<void*> lane = device.NativeLane(Lane::kCompute);
  return lane.ok() ? static_cast<cudaStream_t>(*lane) : nullptr;
}

}  // namespace

GpuBench::GpuBench(std::unique_ptr<Device> device, const Options& options)
    : options_(options),
      begin_(SteadyNow()),
      device_(std::move(device)),
      timer_(device_.get(), TimerOptions(options.quick)) {}

absl::StatusOr<std::unique_ptr<GpuBench>> GpuBench::Create(std::unique_ptr<Device> device,
                                                           const Options& options) {
  std::unique_ptr<GpuBench> bench(new GpuBench(std::move(device), options));
  bench->library_ = std::make_unique<cuda::CudaLibrary>(ComputeStream(*bench->device_), Buffer(),
                                                        Buffer(), cuda::kLeastSharedBytes);
  if (!options.out.empty()) {
    bench->out_.open(options.out, std::ios::app);
    if (!bench->out_) {
      return absl::NotFoundError(absl::StrCat("--out ", options.out, ": cannot be written"));
    }
  }
  if (!options.computed.empty()) {
    ASSIGN_OR_RETURN(bench->reach_,
                     ReachTable::Load(options.computed, bench->device_->info().name));
  }
  RETURN_IF_ERROR(bench->MeasureRoofs());
  return bench;
}

absl::StatusOr<double> GpuBench::CopiesPerSecond(const Buffer& from, const Buffer& to,
                                                 int64_t bytes) {
  const cudaStream_t stream = ComputeStream(*device_);
  ASSIGN_OR_RETURN(const double seconds, timer_.SecondsPerCall([&](int64_t) {
    return cuda::ToStatus(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDefault, stream),
                          "cudaMemcpyAsync");
  }));
  return 1 / seconds;
}

template <typename Peak, typename Multiply>
absl::StatusOr<double> GpuBench::OpsPerSecond(const Peak& peak, const Multiply& multiply) {
  ASSIGN_OR_RETURN(const Buffer sums, device_->Allocate(int64_t{4} * peak.blocks * Peak::kThreads,
                                                        MemoryKind::kDevice));
  const cudaStream_t stream = ComputeStream(*device_);
  ASSIGN_OR_RETURN(const double seconds, timer_.SecondsPerCall([&](int64_t) {
    return cuda::ToStatus(multiply(peak, sums.floats(DType::kF32).f32(), stream), "products alone");
  }));
  return peak.ops() / seconds;
}

absl::StatusOr<double> GpuBench::MmaOpsPerSecond() {
  return OpsPerSecond(cuda::TensorPeak{.blocks = quick() ? 2 : 16384, .rounds = quick() ? 2 : 128},
                      cuda::MultiplyOnly);
}

absl::StatusOr<double> GpuBench::WgmmaOpsPerSecond() {
  int sms = 0;
  RETURN_IF_ERROR(cuda::ToStatus(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0),
                                 "cudaDeviceGetAttribute"));
  return OpsPerSecond(
      cuda::TensorPeakSm90{.blocks = quick() ? 2 : 8 * sms, .rounds = quick() ? 2 : 256},
      cuda::MultiplyOnlySm90);
}

// The roof is that of what the GPU's own kernels multiply by.
absl::Status GpuBench::MeasureTensorCores() {
  ASSIGN_OR_RETURN(roofs_.tensor, MmaOpsPerSecond());
  Say({.name = "mma.sync peak", .value = roofs_.tensor * 1e-12, .unit = "TFLOP/s"});
  if (!cuda::IsSm90()) return absl::OkStatus();
  ASSIGN_OR_RETURN(roofs_.tensor, WgmmaOpsPerSecond());
  roofs_.tensor_name = "wgmma peak";
  Say({.name = roofs_.tensor_name, .value = roofs_.tensor * 1e-12, .unit = "TFLOP/s"});
  return absl::OkStatus();
}

absl::Status GpuBench::MeasureRoofs() {
  const int64_t bytes = quick() ? 1 << 12 : 1 << 29, crossing = quick() ? 1 << 12 : 1 << 26;
  ASSIGN_OR_RETURN(const Buffer from, RandomMemory(bytes, DType::kBF16));
  ASSIGN_OR_RETURN(const Buffer to, device_->Allocate(bytes, MemoryKind::kDevice));
  ASSIGN_OR_RETURN(const Buffer host, device_->Allocate(crossing, MemoryKind::kPinned));
  ASSIGN_OR_RETURN(const double copies, CopiesPerSecond(from, to, bytes));
  ASSIGN_OR_RETURN(const double down, CopiesPerSecond(from, host, crossing));
  ASSIGN_OR_RETURN(const double up, CopiesPerSecond(host, to, crossing));
  roofs_.copy = 2.0 * static_cast<double>(bytes) * copies;
  roofs_.from_device = static_cast<double>(crossing) * down;
  roofs_.to_device = static_cast<double>(crossing) * up;
  Say({.name = "copy bandwidth, read and written", .value = roofs_.copy * 1e-9, .unit = "GB/s"});
  Say({.name = "pinned to device", .value = roofs_.to_device * 1e-9, .unit = "GB/s"});
  Say({.name = "device to pinned", .value = roofs_.from_device * 1e-9, .unit = "GB/s"});
  return MeasureTensorCores();
}

absl::Status GpuBench::Measure(const GpuWork& work, absl::FunctionRef<absl::Status(int64_t)> call) {
  if (!IsTimeFor(work.name)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const double seconds, timer_.SecondsPerCall(call));
  const double bytes_roof = work.bytes_roof > 0 ? work.bytes_roof : roofs_.copy;
  const bool computes = work.ops / roofs_.tensor > work.bytes / bytes_roof;
  const double amount = computes ? work.ops * 1e-12 : work.bytes * 1e-9;
  Row row{.name = work.name,
          .value = amount / seconds,
          .unit = computes ? "TFLOP/s" : "GB/s",
          .roof = computes ? roofs_.tensor * 1e-12 : bytes_roof * 1e-9,
          .roof_name = computes ? roofs_.tensor_name : work.roof_name,
          .seconds = seconds,
          .ops = work.ops,
          .bytes = work.bytes};
  if (!work.family.empty()) {
    const ReachTable::Range reach = reach_.PerSecond(work.family, work.ops, work.bytes);
    row.computed_low = amount * reach.low;
    row.computed_high = amount * reach.high;
  }
  Say(row);
  return absl::OkStatus();
}

// By 16 MiB at random that are copied over and over.
absl::StatusOr<Buffer> GpuBench::RandomMemory(int64_t bytes, DType dtype) {
  const int64_t part = std::min<int64_t>((bytes + 15) / 16 * 16, int64_t{16} << 20);
  const int64_t parts = (bytes + part - 1) / part;
  ASSIGN_OR_RETURN(Buffer memory, device_->Allocate(parts * part, MemoryKind::kDevice));
  ASSIGN_OR_RETURN(const Buffer source, device_->Allocate(part, MemoryKind::kPinned));
  ASSIGN_OR_RETURN(const Buffer list,
                   device_->Allocate(parts * int64_t{sizeof(CopyPiece)}, MemoryKind::kPinned));
  Random random(static_cast<uint64_t>(bytes));
  for (int64_t i = 0; i < part / 8; ++i) source.array<uint64_t>()[i] = RandomBits(random, dtype);
  auto* const pieces = list.array<CopyPiece>();
  for (int64_t i = 0; i < parts; ++i) {
    pieces[i] = {i == 0 ? source.data() : memory.data(), memory.data() + i * part, part};
  }
  RETURN_IF_ERROR(device_->CopyPieces(Lane::kCompute, {pieces, 1}));
  if (parts > 1) {
    RETURN_IF_ERROR(
        device_->CopyPieces(Lane::kCompute, {pieces + 1, static_cast<size_t>(parts - 1)}));
  }
  RETURN_IF_ERROR(device_->Synchronize());
  return memory;
}

absl::StatusOr<Buffer> GpuBench::UploadBytes(const std::byte* data, int64_t bytes) {
  const int64_t whole = (bytes + 7) / 8 * 8;
  ASSIGN_OR_RETURN(Buffer memory, device_->Allocate(whole, MemoryKind::kDevice));
  ASSIGN_OR_RETURN(const Buffer host,
                   device_->Allocate(whole + int64_t{sizeof(CopyPiece)}, MemoryKind::kPinned));
  std::memcpy(host.data(), data, bytes);
  auto* const piece = host.array<CopyPiece>(whole);
  *piece = {host.data(), memory.data(), whole};
  RETURN_IF_ERROR(device_->CopyPieces(Lane::kCompute, {piece, 1}));
  RETURN_IF_ERROR(device_->Synchronize());
  return memory;
}

// Five times the largest cache of an H200.
int64_t GpuBench::cold_bytes() const { return quick() ? 1 : int64_t{256} << 20; }

absl::StatusOr<bool> GpuBench::HasRoomFor(int64_t bytes) const {
  ASSIGN_OR_RETURN(const DeviceMemory memory, device_->Memory());
  return bytes <= memory.free / 8 * 7;
}

void GpuBench::LeaveOut(absl::string_view name, absl::string_view why) {
  ++left_out_;
  std::printf("  %s: left out: %s\n", std::string(name).c_str(), std::string(why).c_str());
}

bool GpuBench::IsTimeFor(absl::string_view name) {
  if (!absl::StrContains(name, options_.match)) return false;
  if (options_.seconds <= 0 || ToSeconds(SteadyNow() - begin_) < options_.seconds) return true;
  LeaveOut(name, absl::StrCat("the ", options_.seconds, " s of --seconds are over"));
  return false;
}

// At once: what is stopped later has said it.
void GpuBench::Say(const Row& row) {
  ++rows_;
  std::printf("%s\n", TableLine(row).c_str());
  std::fflush(stdout);
  if (out_.is_open()) out_ << JsonLine(row) << std::endl;
}

}  // namespace baton::bench
