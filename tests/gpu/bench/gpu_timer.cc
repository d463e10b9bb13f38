#include "tests/gpu/bench/gpu_timer.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "common/base/clock.h"
#include "common/base/running_time.h"
#include "common/base/status.h"

namespace baton::bench {

// Without Wait's naps, which take longer than many kernels.
absl::StatusOr<double> GpuTimer::SecondsOf(absl::FunctionRef<absl::Status()> enqueue) const {
  const Time begin = SteadyNow();
  RETURN_IF_ERROR(enqueue());
  ASSIGN_OR_RETURN(const Mark mark, device_.MarkNow(Lane::kCompute));
  for (RunningTime time(begin);;) {
    ASSIGN_OR_RETURN(const bool done, device_.IsDone(mark));
    const Time now = SteadyNow();
    if (done) return ToSeconds(now - begin);
    const Duration limit = device_.info().limit;
    if (time.Look(now) >= limit) return NotEndedWithin(device_.info().name, limit);
  }
}

absl::StatusOr<double> GpuTimer::SecondsPerCall(
    absl::FunctionRef<absl::Status(int64_t)> call) const {
  const auto first = [&] { return call(0); };
  RETURN_IF_ERROR(SecondsOf(first).status());  // Loads things.
  ASSIGN_OR_RETURN(const double alone, SecondsOf(first));
  const int64_t calls =
      std::clamp<int64_t>(static_cast<int64_t>(options_.seconds / alone), 1, options_.most_calls);
  ASSIGN_OR_RETURN(const std::unique_ptr<Graph> graph, device_.Capture([&] {
    for (int64_t i = 0; i < calls; ++i) RETURN_IF_ERROR(call(i));
    return absl::OkStatus();
  }));
  const auto launch = [&] { return device_.Launch(*graph); };
  RETURN_IF_ERROR(SecondsOf(launch).status());
  std::vector<double> seconds(options_.repeats);
  for (double& one : seconds) {
    ASSIGN_OR_RETURN(one, SecondsOf(launch));
  }
  const auto middle = seconds.begin() + options_.repeats / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle / static_cast<double>(calls);
}

}  // namespace baton::bench
