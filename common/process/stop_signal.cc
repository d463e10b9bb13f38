#include "common/process/stop_signal.h"

#include <cerrno>
#include <chrono>
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

void StopSignal::Wait(Duration interval, absl::FunctionRef<void()> meanwhile) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(interval);
  const timespec limit{.tv_sec = seconds.count(),
                       .tv_nsec = std::chrono::nanoseconds(interval - seconds).count()};
  while (sigtimedwait(&signals_, nullptr, &limit) < 0) {
    if (errno == EAGAIN) meanwhile();
  }
}

bool StopSignal::CameAgain() {
  const timespec no_wait{};
  return sigtimedwait(&signals_, nullptr, &no_wait) > 0;
}

}  // namespace baton
