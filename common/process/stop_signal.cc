#include "common/process/stop_signal.h"

#include <cerrno>
#include <ctime>

namespace baton {

StopSignal::StopSignal() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGTERM);
  sigaddset(&signals_, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

void StopSignal::Wait() {
  int signal = 0;
  while (sigwait(&signals_, &signal) != 0) {
  }
}

bool StopSignal::CameAgain() {
  const timespec no_wait{};
  return sigtimedwait(&signals_, nullptr, &no_wait) > 0;
}

}  // namespace baton
