#include "common/process/lost_device.h"

#include <dirent.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>

namespace baton {
namespace {

// What is no socket refuses.
void ShutDownSockets() {
  DIR* const open = ::opendir("/proc/self/fd");
  if (open == nullptr) return;
  while (const dirent* entry = ::readdir(open)) {
    const int fd = std::atoi(entry->d_name);
    if (fd > 2) ::shutdown(fd, SHUT_RDWR);
  }
  ::closedir(open);
}

// In this thread, whatever others block.
void EndAfter(unsigned seconds) {
  std::signal(SIGALRM, [](int) { ::_exit(kLostDeviceExit); });
  sigset_t alarm;
  ::sigemptyset(&alarm);
  ::sigaddset(&alarm, SIGALRM);
  ::pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
  ::alarm(seconds);
}

}  // namespace

void EndForLostDevice(absl::FunctionRef<void()> last_words, unsigned seconds) {
  static std::atomic_flag ending;
  while (ending.test_and_set()) ::pause();
  ShutDownSockets();
  EndAfter(seconds);
  last_words();
  ::_exit(kLostDeviceExit);
}

}  // namespace baton
