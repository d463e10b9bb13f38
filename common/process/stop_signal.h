#pragma once

#include <csignal>

#include "absl/functional/function_ref.h"
#include "common/base/time.h"

namespace baton {

// SIGTERM and SIGINT as something a program waits for. Make it first thing in main: threads
// inherit the blocked signals. Also ignores SIGPIPE: a peer that is gone is an error code.
class StopSignal {
 public:
  StopSignal();

  // Until one of the signals has come. The second one runs `meanwhile` each `interval`.
  void Wait();
  void Wait(Duration interval, absl::FunctionRef<void()> meanwhile);

  // True if a further one has come by now: the operator is in a hurry.
  bool CameAgain();

 private:
  sigset_t signals_;
};

}  // namespace baton
