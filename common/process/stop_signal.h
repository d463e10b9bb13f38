#pragma once

#include <csignal>

namespace baton {

// SIGTERM and SIGINT as something a program waits for. Make it first thing in main: threads
// inherit the blocked signals. Also ignores SIGPIPE: a peer that is gone is an error code.
class StopSignal {
 public:
  StopSignal();

  // Until one of the signals has come.
  void Wait();

  // True if a further one has come by now: the operator is in a hurry.
  bool CameAgain();

 private:
  sigset_t signals_;
};

}  // namespace baton
