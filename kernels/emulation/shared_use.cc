#include "kernels/emulation/shared_use.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace baton::emulation {
namespace {

// A byte of the file is locked for each process, behind them one for who counts.
struct flock LockOf(int byte, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return lock;
}

bool SetLock(int fd, int byte, short type, bool waits) {
  struct flock lock = LockOf(byte, type);
  int result;
  do {
    result = ::fcntl(fd, waits ? F_SETLKW : F_SETLK, &lock);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

// Alone among the processes.
class Counting {
 public:
  Counting(int fd, int byte) : fd_(fd), byte_(byte) { SetLock(fd_, byte_, F_WRLCK, true); }
  ~Counting() { SetLock(fd_, byte_, F_UNLCK, true); }
  Counting(const Counting&) = delete;

 private:
  const int fd_;
  const int byte_;
};

[[noreturn]] void End(const std::string& path, const char* why) {
  std::fprintf(stderr, "BATON_EMULATED_GPU shared=%s: %s\n", path.c_str(), why);
  std::exit(2);
}

}  // namespace

SharedUse::SharedUse(const std::string& path) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  constexpr size_t kBytes = kProcesses * sizeof(Use);
  if (fd_ < 0 || ::ftruncate(fd_, kBytes) != 0) End(path, std::strerror(errno));
  void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) End(path, std::strerror(errno));
  uses_ = static_cast<Use*>(mapped);
  const Counting alone(fd_, kProcesses);
  while (self_ < kProcesses && !SetLock(fd_, self_, F_WRLCK, false)) ++self_;
  if (self_ == kProcesses) End(path, "too many processes");
  for (auto& bytes : uses_[self_].bytes) bytes = 0;
}

bool SharedUse::IsTaken(int process) const {
  if (process == self_) return false;
  struct flock lock = LockOf(process, F_WRLCK);
  return ::fcntl(fd_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

size_t SharedUse::OfOthers(int device) const {
  size_t bytes = 0;
  for (int process = 0; process < kProcesses; ++process) {
    const uint64_t used = uses_[process].bytes[device];
    if (used > 0 && IsTaken(process)) bytes += used;
  }
  return bytes;
}

bool SharedUse::Take(int device, size_t bytes, size_t capacity) {
  const Counting alone(fd_, kProcesses);
  std::atomic<uint64_t>& own = uses_[self_].bytes[device];
  const size_t used = own + OfOthers(device);
  if (used > capacity || bytes > capacity - used) return false;
  own += bytes;
  return true;
}

void SharedUse::GiveBack(int device, size_t bytes) {
  const Counting alone(fd_, kProcesses);
  uses_[self_].bytes[device] -= bytes;
}

}  // namespace baton::emulation
