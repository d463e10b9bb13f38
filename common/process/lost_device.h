#pragma once

#include "absl/functional/function_ref.h"

namespace baton {

// How a process ends that has lost its device: EX_SOFTWARE.
inline constexpr int kLostDeviceExit = 70;

// Ends the process as if it had been killed: an orderly end would look to its peers like a healthy
// worker that fails requests, and what it says could no longer be believed. Every socket is shut
// down first, for a device's driver may keep a process from ending; then `last_words`, once, and
// _exit(kLostDeviceExit), even if nobody reads those words within so many seconds. No destructor
// runs. From any thread; whoever comes second waits for the end.
[[noreturn]] void EndForLostDevice(absl::FunctionRef<void()> last_words, unsigned seconds = 5);

}  // namespace baton
