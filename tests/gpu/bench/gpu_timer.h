#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/device.h"

namespace baton::bench {

// How long calls take that a device is given one behind the other.
class GpuTimer {
 public:
  struct Options {
    double seconds = 0.01;  // Of one measurement, about.
    int64_t most_calls = 200;
    int repeats = 5;
  };

  GpuTimer(Device* device, const Options& options) : device_(*device), options_(options) {}

  // Seconds of one of many calls that a graph holds, as a decode step's does: the median of several
  // launches. `call` enqueues the i-th on kCompute; the first runs before as well, alone.
  absl::StatusOr<double> SecondsPerCall(absl::FunctionRef<absl::Status(int64_t)> call) const;

 private:
  // From before `enqueue` until what it enqueued on kCompute is done.
  absl::StatusOr<double> SecondsOf(absl::FunctionRef<absl::Status()> enqueue) const;

  Device& device_;
  const Options options_;
};

}  // namespace baton::bench
