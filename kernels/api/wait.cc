#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/running_time.h"
#include "common/base/status.h"
#include "kernels/api/device.h"

namespace baton {
namespace {

// Most waits of a step are short, and a nap takes longer than it says.
constexpr Duration kSpin = std::chrono::microseconds(50);
constexpr Duration kNap = std::chrono::microseconds(50);

}  // namespace

absl::Status NotEndedWithin(absl::string_view device, Duration limit) {
  return absl::UnavailableError(absl::StrCat(
      device, " has not ended its work within ",
      std::chrono::duration_cast<std::chrono::milliseconds>(limit).count(), " ms"));
}

absl::Status WaitUntil(absl::string_view device, Duration limit,
                       absl::FunctionRef<absl::StatusOr<bool>()> is_done) {
  RunningTime time(SteadyNow());
  for (Duration waited{};;) {
    ASSIGN_OR_RETURN(const bool done, is_done());
    if (done) return absl::OkStatus();
    if (waited >= limit) return NotEndedWithin(device, limit);
    if (waited >= kSpin) std::this_thread::sleep_for(kNap);
    waited = time.Look(SteadyNow());
  }
}

absl::Status WaitUntil(Device& device, Duration limit,
                       absl::FunctionRef<absl::StatusOr<bool>()> is_done) {
  bool answers = true;
  const absl::Status status = WaitUntil(device.info().name, limit, [&] {
    absl::StatusOr<bool> done = is_done();
    answers = done.ok();
    return done;
  });
  if (!status.ok() && answers) device.GiveUp();
  return status;
}

absl::Status Wait(Device& device, Mark mark, Duration limit) {
  return WaitUntil(device, limit, [&] { return device.IsDone(mark); });
}

absl::Status Wait(Device& device, Mark mark) { return Wait(device, mark, device.info().limit); }

}  // namespace baton
