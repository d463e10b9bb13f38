#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "kernels/emulation/block_runner.h"
#include "kernels/emulation/cuda_api.h"
#include "kernels/emulation/emulator.h"
#include "kernels/emulation/global_memory.h"
#include "kernels/emulation/options.h"
#include "kernels/emulation/shared_memory.h"
#include "kernels/emulation/work_queue.h"

namespace baton::emulation {

// The process's devices: one queue, one range of addresses, and one block at a time. The queue has
// the locks: `work.running` guards memory and runner,
// `work.mutex` all the rest but the message.
struct EmulatedDevice {
  EmulatedDevice();

  SharedMemory shared;
  GlobalMemory global;
  BlockRunner runner{&shared, &global};
  WorkQueue work;
  std::array<const GpuModel*, kMostDevices> models = {};
  std::array<WgmmaSums, kMostDevices> wgmma = {};
  int devices = 1;
  bool peers = true;  // Whether one can be let touch another's memory.
  int64_t calls_until_failure = 0;  // 0: none.
  cudaError_t planned_error = cudaSuccess;
  // 0: none. Of the running kernel.
  int64_t kernels_until_loss = 0;
  int64_t kernels_until_hang = 0;
  std::array<std::atomic<bool>, kMostDevices> hang = {};  // No kernel of it ends.

  void set_seed(uint64_t seed);
  std::string message() const;
  // Keeps the first message. What is wrong with the host's part of some work is an invalid value.
  cudaError_t FailWork(const std::string& message);

 private:
  mutable std::mutex message_mutex_;
  std::string message_;

 public:
  void ForgetMessage();
};

EmulatedDevice& TheDevice();
// The calling thread's.
int& CurrentDevice();

// Every API call holds one. It tells what the call must return at once, if anything.
class Call {
 public:
  Call();
  // Of calls that a recording does not allow.
  cudaError_t RefuseWhileRecording();
  // The stream's queue, or null: it belongs to another device than the thread's.
  Stream* QueueOf(cudaStream_t stream);
  // Whether the thread's device may touch what lies there.
  cudaError_t CheckReach(const void* address);
  // What a device does not do amid a kernel waits for its end.
  void WaitWhileItHangs();
  // Lets the devices work until done().
  cudaError_t RunUntil(const std::function<bool()>& done);

  const int on;  // The calling thread's device.
  EmulatedDevice& device = TheDevice();
  WorkQueue::Lock lock{device.work.mutex};
  cudaError_t error = cudaSuccess;
};

}  // namespace baton::emulation
