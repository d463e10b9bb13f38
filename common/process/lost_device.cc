#include "common/process/lost_device.h"

#include <dirent.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
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

}  // namespace

void EndForLostDevice(absl::FunctionRef<void()> last_words) {
  static std::atomic_flag ending;
  while (ending.test_and_set()) ::pause();
  ShutDownSockets();
  last_words();
  ::_exit(kLostDeviceExit);
}

}  // namespace baton
