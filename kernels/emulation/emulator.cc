#include "kernels/emulation/emulator.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

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
  for (int i = 0; i < kMostDevices; ++i) {
    models[i] = options.models[std::min<size_t>(i, options.models.size() - 1)];
  }
  wgmma.fill(options.wgmma);
  devices = options.devices;
  peers = options.peers;
  set_seed(options.seed);
  global.set_capacity(options.memory);
  global.Take(options.taken);
  if (!options.shared.empty()) global.ShareWith(options.shared);
  kernels_until_loss = options.lose;
  kernels_until_hang = options.hang;
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

int& CurrentDevice() {
  static thread_local int device = 0;
  return device;
}

Call::Call() : on(CurrentDevice()) {
  if (device.calls_until_failure > 0 && --device.calls_until_failure == 0) {
    error = device.planned_error;
    if (error == cudaErrorLaunchFailure) device.work.errors[on] = error;
  }
  if (device.work.errors[on] != cudaSuccess) error = device.work.errors[on];
}

cudaError_t Call::RefuseWhileRecording() {
  if (error != cudaSuccess) return error;
  return device.work.SpoilRecordings() ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

Stream* Call::QueueOf(cudaStream_t stream) {
  Stream* const queue = device.work.Of(stream, on);
  if (queue->device == on) return queue;
  device.FailWork("a stream of device " + std::to_string(queue->device) +
                  " is used by a thread whose device is " + std::to_string(on));
  return nullptr;
}

cudaError_t Call::CheckReach(const void* address) {
  const std::lock_guard memory(device.work.running);
  const std::string refusal = device.global.RefusalOf(on, address);
  return refusal.empty() ? cudaSuccess : device.FailWork(refusal);
}

void Call::WaitWhileItHangs() {
  device.work.RunUntil(lock, [&] { return !device.hang[on]; });
}

cudaError_t Call::RunUntil(const std::function<bool()>& done) {
  if (!device.work.RunUntil(lock, done)) {
    device.FailWork("streams wait for each other for ever");
    device.work.errors[on] = cudaErrorLaunchFailure;
  }
  return device.work.errors[on];
}

BlockRunner& TheRunner() { return TheDevice().runner; }
Architecture CurrentArchitecture() {
  return TheDevice().models[TheRunner().running().device]->sums;
}
const WgmmaSums& CurrentWgmmaSums() { return TheDevice().wgmma[TheRunner().running().device]; }

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
  {
    const std::lock_guard memory(device.work.running);
    device.global.ForgetPeers();
  }
  device.calls_until_failure = 0;
  device.kernels_until_loss = 0;
  device.kernels_until_hang = 0;
  for (std::atomic<bool>& hangs : device.hang) hangs = false;
  device.work.Wake();
}

void SetDevices(int count, bool peers) {
  const std::lock_guard lock(TheDevice().work.mutex);
  TheDevice().devices = count;
  TheDevice().peers = peers;
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

void HangInKernel(int64_t n) {
  const std::lock_guard lock(TheDevice().work.running);
  TheDevice().kernels_until_hang = n;
}

void SetGpu(std::string_view name) {
  const std::scoped_lock lock(TheDevice().work.mutex, TheDevice().work.running);
  TheDevice().models.fill(FindGpuModel(name));
}

void SetGpu(int device, std::string_view name) {
  const std::scoped_lock lock(TheDevice().work.mutex, TheDevice().work.running);
  TheDevice().models[device] = FindGpuModel(name);
}

void SetWgmma(const WgmmaSums& sums) {
  const std::scoped_lock lock(TheDevice().work.mutex, TheDevice().work.running);
  TheDevice().wgmma.fill(sums);
}

void SetWgmma(int device, const WgmmaSums& sums) {
  const std::scoped_lock lock(TheDevice().work.mutex, TheDevice().work.running);
  TheDevice().wgmma[device] = sums;
}

void SetArchitecture(Architecture architecture) {
  SetGpu(architecture == Architecture::kHopper ? "sm90" : "sm80");
}

Statistics GetStatistics() {
  const std::lock_guard lock(TheDevice().work.running);
  Statistics statistics = TheDevice().runner.statistics();
  statistics.allocations = TheDevice().global.num_allocations();
  return statistics;
}

std::vector<StreamFacts> GetStreams() {
  const std::lock_guard lock(TheDevice().work.mutex);
  std::vector<StreamFacts> facts;
  for (const Stream* stream : TheDevice().work.Streams()) {
    facts.push_back({stream->flags, stream->priority});
  }
  return facts;
}

void StartDriver() {
  static const bool started = [] {
    std::thread([] {
      pthread_setname_np(pthread_self(), "emulated-gpu");
      WorkQueue::Lock lock(TheDevice().work.mutex);
      // Memory is opened for many kernels at once: that takes longer than a kernel.
      TheDevice().work.Drive(lock, [](bool begins) {
        GlobalMemory& global = TheDevice().global;
        begins ? global.Open() : global.Close();
      });
    }).detach();
    return true;
  }();
  (void)started;
}

cudaError_t Launch(const void* function, dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, std::unique_ptr<const KernelCall> call, int cluster) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  const size_t threads = size_t{block.x} * block.y * block.z;
  const bool empty_grid = grid.x == 0 || grid.y == 0 || grid.z == 0;
  // The limits of CUDA: 2^31 - 1 blocks in x, 65535 in y and z.
  if (grid.x >> 31 != 0) return cudaErrorInvalidValue;  // As an H100's driver says.
  if (threads == 0 || threads > kMaxBlockThreads || block.z > 64 || empty_grid || grid.y > 65535 ||
      grid.z > 65535 || shared_bytes > api.device.models[api.on]->shared_bytes) {
    return cudaErrorInvalidConfiguration;
  }
  // Threads of a cluster's blocks are counted in whole warpgroups, and all at once.
  const bool has_room = (threads + 127) / 128 * 128 * cluster <= kMaxThreads;
  const bool is_cluster = cluster >= 1 && cluster <= kMostBlocks && grid.x % cluster == 0 &&
                          has_room && api.device.models[api.on]->major >= 9;
  if (cluster != 1 && !is_cluster) return cudaErrorInvalidClusterSize;
  Stream* const queue = api.QueueOf(stream);
  if (queue == nullptr) return cudaErrorInvalidResourceHandle;
  const std::shared_ptr<const KernelCall> kernel = std::move(call);
  const std::string name = NameOf(function);
  const auto run = [=, on = api.on] {
    EmulatedDevice& device = TheDevice();
    if (device.kernels_until_loss > 0 && --device.kernels_until_loss == 0) {
      device.FailWork(name + ": the device is lost, as was asked for");
      return cudaErrorLaunchFailure;
    }
    if (device.kernels_until_hang > 0 && --device.kernels_until_hang == 0) device.hang[on] = true;
    if (device.hang[on]) return cudaErrorNotReady;
    device.global.Open();
    const std::string message =
        device.runner.Run({name, grid, block, shared_bytes, kernel.get(), on, cluster});
    device.global.Close();
    if (message.empty()) return cudaSuccess;
    device.FailWork(message);
    return cudaErrorLaunchFailure;
  };
  api.device.work.Put(queue, {.run = run, .kernel = name});
  return cudaSuccess;
}

}  // namespace baton::emulation
