#include "kernels/emulation/cuda_api.h"

#include <cstring>
#include <mutex>

#include "kernels/emulation/emulated_device.h"

namespace {

bool IsDone(const baton::emulation::Event& event) {
  return event.stream == nullptr || event.stream->done >= event.count;
}

}  // namespace

using baton::emulation::Call;  // NOLINT
using baton::emulation::Event;
using baton::emulation::Graph;
using baton::emulation::Stream;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  const std::lock_guard memory(api.device.work.running);
  *pointer = api.device.global.Allocate(bytes, /*pinned=*/false);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  // As on a device, everything that runs ends first.
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) return error;
  Call api;
  const std::lock_guard memory(api.device.work.running);
  return api.device.global.Free(pointer, /*pinned=*/false) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  const std::lock_guard memory(api.device.work.running);
  *pointer = api.device.global.Allocate(bytes, /*pinned=*/true);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  if (const cudaError_t error = cudaDeviceSynchronize(); error != cudaSuccess) return error;
  Call api;
  const std::lock_guard memory(api.device.work.running);
  return api.device.global.Free(pointer, /*pinned=*/true) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  Call api;
  const std::lock_guard memory(api.device.work.running);
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
      return device.FailWork("a copy's destination is outside its allocation");
    }
    if (!device.global.IsWithinBounds(from, bytes)) {
      return device.FailWork("a copy's source is outside its allocation");
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
  return api.RunUntil([=] { return queue->done >= target; });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = Call().RefuseWhileRecording(); error != cudaSuccess) return error;
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error != cudaSuccess ? error : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  auto& device = api.device;
  device.work.Put(device.work.Of(stream), {.run = [=, &device] {
                    if (!device.global.IsWithinBounds(to, bytes)) {
                      return device.FailWork("a memset is outside its allocation");
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

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Call api;
  if (!api.device.work.Owns(stream)) return cudaErrorInvalidResourceHandle;
  // Events recorded on it stay done.
  const cudaError_t error = api.RunUntil([&] { return stream->queue.empty(); });
  api.device.work.Remove(stream);
  return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  Stream* queue = api.device.work.Of(stream);
  const uint64_t target = queue->queued;
  return api.RunUntil([=] { return queue->done >= target; });
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
  api.device.work.RunSome(api.lock);
  if (api.device.work.error != cudaSuccess) return api.device.work.error;
  return IsDone(*event) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  return api.RunUntil([=] { return IsDone(*event); });
}

cudaError_t cudaDeviceSynchronize() {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  return api.RunUntil([&] { return api.device.work.IsIdle(); });
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
