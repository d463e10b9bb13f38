#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "kernels/api/device.h"

namespace baton {
namespace {

// Most waits of a step are short, and a nap takes longer than it says.
constexpr Duration kSpin = std::chrono::microseconds(50);
constexpr Duration kNap = std::chrono::microseconds(50);
// A process that was stopped and goes on finds a long time gone in one slice.
constexpr Duration kLongestSlice = std::chrono::milliseconds(100);

}  // namespace

absl::Status Wait(Device& device, Mark mark, Duration limit) {
  Time last = SteadyNow();
  for (Duration waited{};;) {
    ASSIGN_OR_RETURN(const bool done, device.IsDone(mark));
    if (done) return absl::OkStatus();
    if (waited >= limit) {
      return absl::UnavailableError(absl::StrCat(
          device.info().name, " has not ended its work within ",
          std::chrono::duration_cast<std::chrono::milliseconds>(limit).count(), " ms"));
    }
    if (waited >= kSpin) std::this_thread::sleep_for(kNap);
    const Time now = SteadyNow();
    waited += std::min<Duration>(now - last, kLongestSlice);
    last = now;
  }
}

}  // namespace baton
