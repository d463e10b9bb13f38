#include "kernels/emulation/cuda_api.h"

#include <cstring>
#include <mutex>
#include <string>

#include "kernels/emulation/emulated_device.h"

namespace {

bool IsDone(const baton::emulation::Event& event) {
  return event.stream == nullptr || event.stream->done >= event.count;
}

// Whether the graph has its memory on its devices.
bool Upload(baton::emulation::Graph* exec, baton::emulation::EmulatedDevice& device) {
  const std::lock_guard memory(device.work.running);
  bool has_all = true;
  for (const auto& lane : exec->lanes) {
    std::byte*& own = exec->memory[lane.device];
    if (own == nullptr) own = device.global.Allocate(exec->kBytes, lane.device);
    has_all = has_all && own != nullptr;
  }
  return has_all;
}

// Of questions about an event that stands for a place in a graph.
cudaError_t RefuseCaptured(const baton::emulation::Event& event, baton::emulation::Call& api) {
  if (event.capture == 0) return cudaSuccess;
  baton::emulation::Graph* const graph = api.device.work.RecordingOf(event);
  if (graph != nullptr) graph->valid = false;
  return cudaErrorCapturedEvent;
}

// Of questions about what is on a stream, from whichever thread.
cudaError_t RefuseRecorded(const baton::emulation::Stream& stream) {
  if (stream.recording == nullptr) return cudaSuccess;
  stream.recording->valid = false;
  return cudaErrorStreamCaptureUnsupported;
}

// What is queued may still use the memory; of that nothing runs now, so that a wait which the
// program lacks is not made up for here.
cudaError_t FreeAfterWork(void* pointer, bool pinned) {
  if (pointer == nullptr) return cudaSuccess;
  baton::emulation::Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  api.WaitWhileItHangs();
  auto& device = api.device;
  {
    const std::lock_guard memory(device.work.running);
    const bool freed =
        pinned ? device.global.FreePinned(pointer) : device.global.Free(pointer, api.on);
    if (!freed) return cudaErrorInvalidValue;
  }
  device.work.Afterwards([pointer, &device] {
    const std::lock_guard memory(device.work.running);
    device.global.Release(pointer);
  });
  return cudaSuccess;
}

}  // namespace

using baton::emulation::Call;  // NOLINT
using baton::emulation::Event;
using baton::emulation::Graph;
using baton::emulation::Stream;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  api.WaitWhileItHangs();
  const std::lock_guard memory(api.device.work.running);
  *pointer = api.device.global.Allocate(bytes, api.on);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFree(void* pointer) { return FreeAfterWork(pointer, /*pinned=*/false); }

namespace baton::cuda {

void BeginSlice(void* data, size_t bytes) {
  auto& device = emulation::TheDevice();
  const std::lock_guard memory(device.work.running);
  device.global.Cut(data, bytes);
}

// What is queued may still use it.
void EndSlice(void* data) {
  auto& device = emulation::TheDevice();
  const std::lock_guard queue(device.work.mutex);
  device.work.Afterwards([data, &device] {
    const std::lock_guard memory(device.work.running);
    device.global.ReleaseCut(data);
  });
}

}  // namespace baton::cuda

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  api.WaitWhileItHangs();
  const std::lock_guard memory(api.device.work.running);
  *pointer = api.device.global.AllocatePinned(bytes);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) { return FreeAfterWork(pointer, /*pinned=*/true); }

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  Call api;
  const std::lock_guard memory(api.device.work.running);
  *total_bytes = api.device.global.capacity();
  *free_bytes = api.device.global.free(api.on);
  return api.error;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  Stream* const queue = api.QueueOf(stream);
  if (queue == nullptr) return cudaErrorInvalidResourceHandle;
  for (const void* end : {static_cast<const void*>(to), from}) {
    if (const cudaError_t error = api.CheckReach(end); error != cudaSuccess) return error;
  }
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
  Stream* const queue = api.QueueOf(stream);
  if (queue == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = api.CheckReach(to); error != cudaSuccess) return error;
  auto& device = api.device;
  device.work.Put(queue, {.run = [=, &device] {
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

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  Call api;
  if (api.error == cudaSuccess) *stream = api.device.work.AddStream(api.on, flags, priority);
  return api.error;
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
  Stream* const queue = api.QueueOf(stream);
  if (queue == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = RefuseRecorded(*queue); error != cudaSuccess) return error;
  const uint64_t target = queue->queued;
  return api.RunUntil([=] { return queue->done >= target; });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  Stream* const queue = api.QueueOf(stream);
  if (queue == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = RefuseRecorded(*queue); error != cudaSuccess) return error;
  api.device.work.RunSome(api.lock);
  const cudaError_t error = api.device.work.errors[api.on];
  if (error != cudaSuccess) return error;
  return queue->done >= queue->queued ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  Stream* const queue = api.QueueOf(stream);
  if (queue == nullptr) return cudaErrorInvalidResourceHandle;
  return api.device.work.Wait(queue, event);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  Call api;
  if (api.error == cudaSuccess) *event = new Event{.device = api.on};
  return api.error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Call api;
  delete event;
  return api.error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  Stream* const queue = api.QueueOf(stream);
  if (queue == nullptr) return cudaErrorInvalidResourceHandle;
  if (event->device != api.on) {
    api.device.FailWork("an event of device " + std::to_string(event->device) +
                        " is recorded on a stream of device " + std::to_string(api.on));
    return cudaErrorInvalidResourceHandle;
  }
  api.device.work.Record(event, queue);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  if (const cudaError_t refused = RefuseCaptured(*event, api); refused != cudaSuccess) {
    return refused;
  }
  api.device.work.RunSome(api.lock);
  const cudaError_t error = api.device.work.errors[api.on];
  if (error != cudaSuccess) return error;
  return IsDone(*event) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  if (const cudaError_t refused = RefuseCaptured(*event, api); refused != cudaSuccess) {
    return refused;
  }
  return api.RunUntil([=] { return IsDone(*event); });
}

cudaError_t cudaDeviceSynchronize() {
  Call api;
  if (const cudaError_t error = api.RefuseWhileRecording(); error != cudaSuccess) return error;
  return api.RunUntil([&] { return api.device.work.IsIdle(api.on); });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  // CUDA does not record the null stream.
  if (stream == nullptr || stream->recording != nullptr) return cudaErrorStreamCaptureUnsupported;
  if (api.QueueOf(stream) == nullptr) return cudaErrorInvalidResourceHandle;
  api.device.work.BeginRecording(stream, mode);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Call api;
  *graph = nullptr;
  if (stream == nullptr || stream->recording == nullptr) return cudaErrorInvalidValue;
  Graph* const recorded = stream->recording;
  if (api.QueueOf(stream) == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream->lane != 0) return cudaErrorStreamCaptureUnmatched;
  if (recorded->mode != cudaStreamCaptureModeRelaxed &&
      pthread_equal(recorded->thread, pthread_self()) == 0) {
    return cudaErrorStreamCaptureWrongThread;
  }
  api.device.work.EndRecording(recorded);
  const cudaError_t error = !recorded->valid        ? cudaErrorStreamCaptureInvalidated
                            : !recorded->IsJoined() ? cudaErrorStreamCaptureUnjoined
                                                    : cudaSuccess;
  if (error == cudaSuccess) {
    *graph = recorded;
    return api.error;
  }
  delete recorded;
  return error;
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
  api.device.work.ReleaseStreams(exec);
  exec->items = graph->items;
  exec->lanes = graph->lanes;
  return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  return Upload(exec, api.device) ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  Stream* const queue = api.QueueOf(stream);
  if (queue == nullptr || exec->device() != api.on) return cudaErrorInvalidResourceHandle;
  if (queue->recording != nullptr) return cudaErrorStreamCaptureUnsupported;
  if (!Upload(exec, api.device)) return cudaErrorMemoryAllocation;
  api.device.work.Replay(exec, queue);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  Call api;
  delete graph;
  return api.error;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  Call api;
  {
    const std::lock_guard memory(api.device.work.running);
    for (const auto& [on, own] : exec->memory) {
      if (own == nullptr) continue;
      api.device.global.Free(own, on);
      api.device.global.Release(own);
    }
  }
  api.device.work.ReleaseStreams(exec);
  delete exec;
  return api.error;
}

cudaError_t cudaGetLastError() { return Call().error; }
