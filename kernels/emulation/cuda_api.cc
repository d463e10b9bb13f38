#include "kernels/emulation/cuda_api.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/emulation/block_runner.h"
#include "kernels/emulation/emulator.h"
#include "kernels/emulation/global_memory.h"
#include "kernels/emulation/shared_memory.h"
#include "kernels/emulation/work_queue.h"

namespace baton::emulation {
namespace {

struct EmulatedDevice {
  std::recursive_mutex mutex;  // Guards all that follows, also while a kernel runs.
  SharedMemory shared;
  GlobalMemory global;
  BlockRunner runner{&shared, &global};
  WorkQueue work{&runner.random()};
  std::string message;
  Architecture architecture = Architecture::kHopper;
  int64_t calls_until_failure = 0;  // 0: none.
  cudaError_t planned_error = cudaSuccess;
};

EmulatedDevice& TheDevice() {
  static auto* device = new EmulatedDevice;
  return *device;
}

// Every API call holds one. It tells what the call must return at once, if anything.
class Call {
 public:
  Call() : lock_(device.mutex) {
    if (device.calls_until_failure > 0 && --device.calls_until_failure == 0) {
      error = device.planned_error;
      if (error == cudaErrorLaunchFailure) device.work.error = error;
    }
    if (device.work.error != cudaSuccess) error = device.work.error;
  }
  // Of calls that a recording does not allow.
  cudaError_t RefuseWhileRecording() {
    if (error != cudaSuccess || !device.work.IsRecording()) return error;
    device.work.SpoilRecordings();
    return cudaErrorStreamCaptureUnsupported;
  }

  EmulatedDevice& device = TheDevice();
  cudaError_t error = cudaSuccess;

 private:
  std::lock_guard<std::recursive_mutex> lock_;
};

// What is wrong with the host's part in a copy; the device is then lost.
cudaError_t FailWork(const std::string& message) {
  if (TheDevice().message.empty()) TheDevice().message = message;
  return cudaErrorInvalidValue;
}

std::string NameOf(const void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0 || info.dli_sname == nullptr) return "a kernel";
  int status = 0;
  char* demangled = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
  std::string name = demangled == nullptr ? info.dli_sname : demangled;
  std::free(demangled);
  return name.substr(0, name.find('('));
}

cudaError_t RunUntil(EmulatedDevice& device, const std::function<bool()>& done) {
  if (!device.work.RunUntil(done)) {
    FailWork("streams wait for each other for ever");
    device.work.error = cudaErrorLaunchFailure;
  }
  return device.work.error;
}

bool IsDone(const Event& event) {
  return event.stream == nullptr || event.stream->done >= event.count;
}

}  // namespace

BlockRunner& TheRunner() { return TheDevice().runner; }
Architecture CurrentArchitecture() { return TheDevice().architecture; }

void SetSeed(uint64_t seed) {
  std::lock_guard lock(TheDevice().mutex);
  TheDevice().runner.set_seed(seed);
}

std::string LastMessage() {
  std::lock_guard lock(TheDevice().mutex);
  return TheDevice().message;
}

void ResetDevice() {
  std::lock_guard lock(TheDevice().mutex);
  TheDevice().work.Clear();
  TheDevice().message.clear();
  TheDevice().calls_until_failure = 0;
}

void SetDeviceMemory(size_t bytes) {
  std::lock_guard lock(TheDevice().mutex);
  TheDevice().global.set_capacity(bytes);
}

void FailCall(int64_t n, cudaError_t error) {
  std::lock_guard lock(TheDevice().mutex);
  TheDevice().calls_until_failure = n;
  TheDevice().planned_error = error;
}

void SetArchitecture(Architecture architecture) {
  std::lock_guard lock(TheDevice().mutex);
  TheDevice().architecture = architecture;
}

Statistics GetStatistics() {
  std::lock_guard lock(TheDevice().mutex);
  return TheDevice().runner.statistics();
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
    device.global.Open();
    const std::string message = device.runner.Run({name, grid, block, shared_bytes, kernel.get()});
    device.global.Close();
    if (message.empty()) return cudaSuccess;
    FailWork(message);
    return cudaErrorLaunchFailure;
  };
  api.device.work.Put(api.device.work.Of(stream), {.run = run, .kernel = name});
  return cudaSuccess;
}

}  // namespace baton::emulation

using baton::emulation::Call;  // NOLINT
using baton::emulation::Event;
using baton::emulation::FailWork;
using baton::emulation::Graph;
using baton::emulation::RunUntil;
using baton::emulation::Stream;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  *pointer = api.device.global.Allocate(bytes, /*pinned=*/false);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  // As on a device, everything that runs ends first.
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) return error;
  Call api;
  return api.device.global.Free(pointer, /*pinned=*/false) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  *pointer = api.device.global.Allocate(bytes, /*pinned=*/true);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) return error;
  Call api;
  return api.device.global.Free(pointer, /*pinned=*/true) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  Call api;
  *total_bytes = api.device.global.capacity();
  *free_bytes = *total_bytes - api.device.global.used();
  return api.error;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  auto& device = api.device;
  const auto run = [=, &device] {
    if (!device.global.IsWithinBounds(to, bytes)) {
      return FailWork("a copy's destination is outside its allocation");
    }
    if (!device.global.IsWithinBounds(from, bytes)) {
      return FailWork("a copy's source is outside its allocation");
    }
    device.global.Open();
    std::memcpy(to, from, bytes);
    device.global.Close();
    return cudaSuccess;
  };
  Stream* queue = device.work.Of(stream);
  device.work.Put(queue, {.run = run});
  const auto is_pageable = [&](const void* p) { return !device.global.Contains(p); };
  if (queue->recording != nullptr || (!is_pageable(to) && !is_pageable(from))) return cudaSuccess;
  const uint64_t target = queue->queued;
  return RunUntil(device, [=] { return queue->done >= target; });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  auto& device = api.device;
  device.work.Put(device.work.Of(stream), {.run = [=, &device] {
                    if (!device.global.IsWithinBounds(to, bytes)) {
                      return FailWork("a memset is outside its allocation");
                    }
                    device.global.Open();
                    std::memset(to, value, bytes);
                    device.global.Close();
                    return cudaSuccess;
                  }});
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  Call api;
  if (api.error == cudaSuccess) *stream = api.device.work.AddStream();
  return api.error;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Call api;
  if (!api.device.work.Owns(stream)) return cudaErrorInvalidResourceHandle;
  // Events recorded on it stay done.
  const cudaError_t error = RunUntil(api.device, [&] { return stream->queue.empty(); });
  api.device.work.Remove(stream);
  return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  Stream* queue = api.device.work.Of(stream);
  const uint64_t target = queue->queued;
  return RunUntil(api.device, [=] { return queue->done >= target; });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Call api;
  if (api.error == cudaSuccess) api.device.work.Wait(api.device.work.Of(stream), event);
  return api.error;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  Call api;
  if (api.error == cudaSuccess) *event = new Event;
  return api.error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Call api;
  delete event;
  return api.error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Call api;
  if (api.error == cudaSuccess) api.device.work.Record(event, api.device.work.Of(stream));
  return api.error;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  api.device.work.RunSome();
  if (api.device.work.error != cudaSuccess) return api.device.work.error;
  return baton::emulation::IsDone(*event) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  return RunUntil(api.device, [=] { return baton::emulation::IsDone(*event); });
}

cudaError_t cudaDeviceSynchronize() {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  return RunUntil(api.device, [&] { return api.device.work.IsIdle(); });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  // CUDA does not record the null stream.
  if (stream == nullptr || stream->recording != nullptr) return cudaErrorStreamCaptureUnsupported;
  stream->recording = new Graph;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Call api;
  if (stream == nullptr || stream->recording == nullptr) return cudaErrorInvalidValue;
  *graph = stream->recording;
  api.device.work.EndRecording(stream->recording);
  if ((*graph)->valid) return api.error;
  delete *graph;
  *graph = nullptr;
  return cudaErrorStreamCaptureInvalidated;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  Call api;
  if (api.error == cudaSuccess) *exec = new Graph(*graph);
  return api.error;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo*) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  if (!exec->IsLike(*graph)) return cudaErrorGraphExecUpdateFailure;
  exec->items = graph->items;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  Call api;
  if (api.error == cudaSuccess) api.device.work.Replay(*exec, api.device.work.Of(stream));
  return api.error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  Call api;
  delete graph;
  return api.error;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  Call api;
  delete exec;
  return api.error;
}

cudaError_t cudaGetLastError() { return Call().error; }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    default:
      return "invalid argument";
  }
}
