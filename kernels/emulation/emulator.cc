#include "kernels/emulation/emulator.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include "kernels/emulation/emulated_device.h"
#include "kernels/emulation/options.h"

namespace baton::emulation {
namespace {

std::string NameOf(const void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0 || info.dli_sname == nullptr) return "a kernel";
  int status = 0;
  char* demangled = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = demangled == nullptr ? info.dli_sname : demangled;
  std::free(demangled);
  return name.substr(0, name.find('('));
}

}  // namespace

EmulatedDevice::EmulatedDevice() {
  const Options options = OptionsOfEnvironment();
  architecture = options.architecture;
  set_seed(options.seed);
  global.set_capacity(options.memory);
  kernels_until_loss = options.lose;
  if (options.detects) return;
  BlockRunner::set_detects(false);
  shared.set_detects(false);
  global.Unprotect();
}

void EmulatedDevice::set_seed(uint64_t seed) {
  runner.set_seed(seed);
  work.set_seed(seed);
}

std::string EmulatedDevice::message() const {
  const std::lock_guard lock(message_mutex_);
  return message_;
}

void EmulatedDevice::ForgetMessage() {
  const std::lock_guard lock(message_mutex_);
  message_.clear();
}

cudaError_t EmulatedDevice::FailWork(const std::string& message) {
  const std::lock_guard lock(message_mutex_);
  if (message_.empty()) message_ = message;
  return cudaErrorInvalidValue;
}

EmulatedDevice& TheDevice() {
  static auto* device = new EmulatedDevice;
  return *device;
}

Call::Call() {
  if (device.calls_until_failure > 0 && --device.calls_until_failure == 0) {
    error = device.planned_error;
    if (error == cudaErrorLaunchFailure) device.work.error = error;
  }
  if (device.work.error != cudaSuccess) error = device.work.error;
}

cudaError_t Call::RefuseWhileRecording() {
  if (error != cudaSuccess || !device.work.IsRecording()) return error;
  device.work.SpoilRecordings();
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t Call::RunUntil(const std::function<bool()>& done) {
  if (!device.work.RunUntil(lock, done)) {
    device.FailWork("streams wait for each other for ever");
    device.work.error = cudaErrorLaunchFailure;
  }
  return device.work.error;
}

BlockRunner& TheRunner() { return TheDevice().runner; }
Architecture CurrentArchitecture() { return TheDevice().architecture; }

void SetSeed(uint64_t seed) {
  const std::scoped_lock lock(TheDevice().work.mutex, TheDevice().work.running);
  TheDevice().set_seed(seed);
}

std::string LastMessage() { return TheDevice().message(); }

void ResetDevice() {
  EmulatedDevice& device = TheDevice();
  WorkQueue::Lock lock(device.work.mutex);
  device.work.Clear(lock);
  device.ForgetMessage();
  device.calls_until_failure = 0;
  device.kernels_until_loss = 0;
}

void SetDeviceMemory(size_t bytes) {
  const std::lock_guard lock(TheDevice().work.running);
  TheDevice().global.set_capacity(bytes);
}

void FailCall(int64_t n, cudaError_t error) {
  const std::lock_guard lock(TheDevice().work.mutex);
  TheDevice().calls_until_failure = n;
  TheDevice().planned_error = error;
}

void LoseInKernel(int64_t n) {
  const std::lock_guard lock(TheDevice().work.running);
  TheDevice().kernels_until_loss = n;
}

void SetArchitecture(Architecture architecture) {
  const std::lock_guard lock(TheDevice().work.running);
  TheDevice().architecture = architecture;
}

Statistics GetStatistics() {
  const std::lock_guard lock(TheDevice().work.running);
  return TheDevice().runner.statistics();
}

void StartDriver() {
  static const bool started = [] {
    std::thread([] {
      WorkQueue::Lock lock(TheDevice().work.mutex);
      TheDevice().work.Drive(lock);
    }).detach();
    return true;
  }();
  (void)started;
}

cudaError_t Launch(const void* function, dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, std::unique_ptr<const KernelCall> call) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  const size_t threads = size_t{block.x} * block.y * block.z;
  const bool empty_grid = grid.x == 0 || grid.y == 0 || grid.z == 0;
  // The limits of CUDA: 2^31 - 1 blocks in x, 65535 in y and z.
  if (threads == 0 || threads > kMaxThreads || block.z > 64 || empty_grid || grid.x >> 31 != 0 ||
      grid.y > 65535 || grid.z > 65535 || shared_bytes > SharedMemory::kMaxBytes) {
    return cudaErrorInvalidConfiguration;
  }
  const std::shared_ptr<const KernelCall> kernel = std::move(call);
  const std::string name = NameOf(function);
  const auto run = [=] {
    EmulatedDevice& device = TheDevice();
    if (device.kernels_until_loss > 0 && --device.kernels_until_loss == 0) {
      device.FailWork(name + ": the device is lost, as was asked for");
      return cudaErrorLaunchFailure;
    }
    device.global.Open();
    const std::string message = device.runner.Run({name, grid, block, shared_bytes, kernel.get()});
    device.global.Close();
    if (message.empty()) return cudaSuccess;
    device.FailWork(message);
    return cudaErrorLaunchFailure;
  };
  api.device.work.Put(api.device.work.Of(stream), {.run = run, .kernel = name});
  return cudaSuccess;
}

}  // namespace baton::emulation
