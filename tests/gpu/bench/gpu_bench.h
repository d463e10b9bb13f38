#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/time.h"
#include "kernels/api/device.h"
#include "kernels/cuda/cuda_library.h"
#include "tests/bench/report.h"
#include "tests/gpu/bench/gpu_timer.h"
#include "tests/gpu/bench/reach_table.h"

namespace baton::bench {

inline constexpr int32_t kBlockTokens = 16;  // Of a cache; what workers take unless told.

// What this GPU can do at most, as far as a program can find out.
struct GpuRoofs {
  double copy = 0;         // Bytes read and written in a second by CUDA's own copies.
  double to_device = 0;    // Bytes a second from pinned memory,
  double from_device = 0;  // and to it.
  double tensor = 0;       // Operations a second of the tensor cores' fastest instruction alone.
  const char* tensor_name = "mma.sync peak";
};

// What a call does at least.
struct GpuWork {
  std::string name;
  double ops = 0;         // Of its products; a multiplication and an addition are two.
  double bytes = 0;       // Read and written.
  std::string family;     // What names of its kernels begin with in gpu_model.py; empty: none.
  double bytes_roof = 0;  // Of its bytes a second; 0: that of copies within the device.
  const char* roof_name = "copy bandwidth";  // Of that.
};

// Where a row comes of: a device, a clock for it, its roofs, and who hears of rows.
class GpuBench {
 public:
  struct Options {
    std::string out;       // A file for a line of JSON a row; empty: none.
    std::string computed;  // What gpu_model.py --json wrote; empty: nothing.
    double seconds = 0;    // After so many no more rows are begun; 0: no limit.
    std::string match;     // Rows whose name contains it; and the roofs.
    bool quick = false;    // Small sizes, each once: that it works, not how fast.
  };

  static absl::StatusOr<std::unique_ptr<GpuBench>> Create(std::unique_ptr<Device> device,
                                                          const Options& options);

  Device& device() { return *device_; }
  ModelOps& ops() { return device_->ops(); }
  OperatorLibrary& library() { return *library_; }
  const GpuRoofs& roofs() const { return roofs_; }
  bool quick() const { return options_.quick; }
  int64_t rows() const { return rows_; }
  int64_t rows_left_out() const { return left_out_; }

  // Seconds of a call, and a row of it beside the roof that it would reach last.
  absl::Status Measure(const GpuWork& work, absl::FunctionRef<absl::Status(int64_t)> call);

  // A row that comes of something else.
  void Say(const Row& row);

  // Memory with random numbers: bf16 of either sign with magnitudes in [2^-8, 2^-7), or of fp8 in
  // [1/2, 1).
  absl::StatusOr<Buffer> RandomMemory(int64_t bytes, DType dtype);
  // Numbers of the host in memory of the device.
  template <typename T>
  absl::StatusOr<Buffer> Upload(const std::vector<T>& values) {
    return UploadBytes(reinterpret_cast<const std::byte*>(values.data()),
                       static_cast<int64_t>(values.size() * sizeof(T)));
  }
  // As much memory as calls have to go through in turn so that a cache holds none of it.
  int64_t cold_bytes() const;
  absl::StatusOr<bool> HasRoomFor(int64_t bytes) const;
  // Instead of a row.
  void LeaveOut(absl::string_view name, absl::string_view why);
  // False, with a line, when the time is over.
  bool IsTimeFor(absl::string_view name);

 private:
  GpuBench(std::unique_ptr<Device> device, const Options& options);
  absl::Status MeasureRoofs();
  absl::StatusOr<Buffer> UploadBytes(const std::byte* data, int64_t bytes);
  absl::StatusOr<double> CopiesPerSecond(const Buffer& from, const Buffer& to, int64_t bytes);
  absl::Status MeasureTensorCores();
  template <typename Peak, typename Multiply>
  absl::StatusOr<double> OpsPerSecond(const Peak& peak, const Multiply& multiply);
  absl::StatusOr<double> MmaOpsPerSecond();
  absl::StatusOr<double> WgmmaOpsPerSecond();

  const Options options_;
  const Time begin_;
  const std::unique_ptr<Device> device_;
  const GpuTimer timer_;
  std::unique_ptr<cuda::CudaLibrary> library_;
  GpuRoofs roofs_;
  ReachTable reach_;
  std::ofstream out_;
  int64_t rows_ = 0, left_out_ = 0;
};

// A kind of operator each. They append their rows.
absl::Status MeasureGemm(GpuBench& bench);
absl::Status MeasurePrefill(GpuBench& bench);
absl::Status MeasureDecode(GpuBench& bench);
absl::Status MeasureRows(GpuBench& bench);
absl::Status MeasureCopies(GpuBench& bench);
absl::Status MeasureChoices(GpuBench& bench);
absl::Status MeasureGraphMemory(GpuBench& bench);
absl::Status MeasureLoad(GpuBench& bench);

}  // namespace baton::bench
