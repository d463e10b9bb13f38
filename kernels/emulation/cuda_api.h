#pragma once

// The part of the CUDA runtime that Baton calls, under its own names, so that host code is the same
// for a GPU and for the emulation. Work on a stream runs when some call waits for it or asks about
// it, and among streams in seeded random order: a missing event or synchronisation shows.
//
// Any thread may call; each has its own current device, on which calls allocate, and whose streams
// they take: another device's are refused, as events recorded there and its memory are without peer
// access, though CUDA itself takes some of them. Errors are sticky as on a device: after a failed
// kernel every call fails whose thread has that device.

#include <cstddef>
#include <cstdint>

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// The values are CUDA's.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorPeerAccessUnsupported = 217,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorPeerAccessAlreadyEnabled = 704,
  cudaErrorLaunchFailure = 719,
  cudaErrorSystemNotReady = 802,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureMerge = 902,
  cudaErrorStreamCaptureUnmatched = 903,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorCapturedEvent = 907,
  cudaErrorStreamCaptureWrongThread = 908,
  cudaErrorGraphExecUpdateFailure = 910,
  cudaErrorInvalidClusterSize = 912,
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaEventDisableTiming = 2;
inline constexpr unsigned cudaHostAllocDefault = 0;

// Of CUDA's the members that Baton reads.
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  size_t totalGlobalMem;
  size_t sharedMemPerBlockOptin;
  int major;
  int minor;
};

namespace baton::emulation {
struct Stream;
struct Event;
struct Graph;
}  // namespace baton::emulation
using cudaStream_t = baton::emulation::Stream*;
using cudaEvent_t = baton::emulation::Event*;
using cudaGraph_t = baton::emulation::Graph*;
using cudaGraphExec_t = baton::emulation::Graph*;
struct cudaGraphExecUpdateResultInfo {
  int result = 0;
};

// Those of a process are its own.
cudaError_t cudaGetDeviceCount(int* count);
// Of the calling thread; 0 at first.
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
// Whether work of the first may be let touch memory of the second.
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer);
// Lets work of the current device do so.
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags);
// 1000 * major + 10 * minor.
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);

// Of a device that hangs these wait for ever, as a device's own may: allocating and freeing.
// Fresh memory holds 0xff: NaN in every float type, -1 as an index. Freed memory is out of reach,
// and its addresses are never given out again.
cudaError_t cudaMalloc(void** pointer, size_t bytes);
cudaError_t cudaFree(void* pointer);
// Page-locked host memory, which kernels may read and write too.
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* pointer);
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes);

// As on a device, a copy between a device and pageable host memory returns when it is done with
// that memory, one with pinned memory when it is queued.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);

// All streams are non-blocking: none waits for the null stream.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
// Priorities are 0 and -1; they change nothing.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
// As cudaEventQuery, of all that is queued.
cudaError_t cudaStreamQuery(cudaStream_t stream);
// The event may be another device's.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
// cudaErrorNotReady until the work before the record is done; each question lets some work run.
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaDeviceSynchronize();

// While a stream records a graph, waiting, allocating and freeing are refused and spoil the graph.
// Streams of other devices too take part from when they wait for an event that was recorded in it.
// It ends on the thread and the stream that began it, which has to have waited for all others by
// then. An event that was recorded in it stands for a place in the graph: it cannot be asked, nor
// waited for by what is recorded elsewhere or runs; nor does the graph wait for any other event.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags);
// Replaces the arguments by those of `graph`, which must launch the same kernels in the same order.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* info);
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream);
// What was not uploaded before takes memory of its devices now. On the device where it was begun:
// what is on the stream comes before all of it, on each of its devices, and what comes on the
// stream after all of it; other streams know nothing of it.
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec);

namespace baton::cuda {
// Part of what cudaMalloc gave is as an allocation of its own from now on, until EndSlice: outside
// of such parts nothing of it may be touched. Between them lies what is between allocations.
inline constexpr int64_t kSliceGap = 4096;
void BeginSlice(void* data, size_t bytes);
void EndSlice(void* data);
}  // namespace baton::cuda

cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t error);
