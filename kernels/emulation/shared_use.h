#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/emulation/options.h"

namespace baton::emulation {

// How much of each device's memory the processes of this machine have that name the same file. One
// that has ended, in whatever way, has none: what keeps its place in the file is a lock, which the
// system takes back. One thread at a time, and one object of a file in a process.
class SharedUse {
 public:
  // Ends the process if there is no such file to be had, or no place in it.
  explicit SharedUse(const std::string& path);
  SharedUse(const SharedUse&) = delete;

  // So many bytes more for this process, if all together have at most `capacity` then.
  bool Take(int device, size_t bytes, size_t capacity);
  void GiveBack(int device, size_t bytes);
  // Of the other processes.
  size_t OfOthers(int device) const;

 private:
  static constexpr int kProcesses = 64;
  struct Use {
    std::atomic<uint64_t> bytes[kMostDevices];
  };

  bool IsTaken(int process) const;  // By another.

  int fd_ = -1;
  int self_ = 0;
  Use* uses_ = nullptr;  // [kProcesses], in the file.
};

}  // namespace baton::emulation
