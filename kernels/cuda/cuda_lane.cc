#include "kernels/cuda/cuda_lane.h"

#include <span>

#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace baton::cuda {

CudaLane::~CudaLane() {
  for (const std::span<const cudaEvent_t> events : {std::span<const cudaEvent_t>(events_),
                                                    std::span<const cudaEvent_t>(graph_events_)}) {
    for (const cudaEvent_t event : events) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void CudaLane::Abandon() {
  events_.fill(nullptr);
  graph_events_.fill(nullptr);
  stream_ = nullptr;
}

absl::Status CudaLane::Open(Lane lane, int priority) {
  lane_ = lane;
  RETURN_IF_ERROR(ToStatus(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, priority),
                           "cudaStreamCreateWithPriority"));
  for (const std::span<cudaEvent_t> events : {std::span<cudaEvent_t>(events_),
                                              std::span<cudaEvent_t>(graph_events_)}) {
    for (cudaEvent_t& event : events) {
      RETURN_IF_ERROR(ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                               "cudaEventCreateWithFlags"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Mark> CudaLane::MarkNow() {
  if (made_ - done_ == kMarks) {
    RETURN_IF_ERROR(
        WaitUntil("the GPU", kDeviceLimit, [&] { return IsDone(made_ - kMarks + 1); }));
  }
  ++made_;
  RETURN_IF_ERROR(ToStatus(cudaEventRecord(EventOf(made_), stream_), "cudaEventRecord"));
  return Mark{.lane = lane_, .number = made_};
}

absl::StatusOr<Mark> CudaLane::MarkInGraph() {
  ++made_in_graphs_;
  RETURN_IF_ERROR(
      ToStatus(cudaEventRecord(EventOf(made_in_graphs_), stream_), "cudaEventRecord"));
  return Mark{.lane = lane_, .number = made_in_graphs_};
}

absl::StatusOr<bool> CudaLane::IsDone(uint64_t number) {
  BATON_CHECK(number <= made_);
  for (; done_ < number; ++done_) {
    const cudaError_t error = cudaEventQuery(EventOf(done_ + 1));
    if (error == cudaErrorNotReady) return false;
    RETURN_IF_ERROR(ToStatus(error, "cudaEventQuery"));
  }
  return true;
}

absl::StatusOr<bool> CudaLane::IsIdle() const {
  const cudaError_t error = cudaStreamQuery(stream_);
  if (error == cudaErrorNotReady) return false;
  RETURN_IF_ERROR(ToStatus(error, "cudaStreamQuery"));
  return true;
}

absl::Status CudaLane::After(const CudaLane& other, uint64_t number) {
  BATON_CHECK(number <= other.made_);
  if (number <= other.done_) return absl::OkStatus();
  return AfterPeer(other, number);
}

// Of `other` only what stays as it was opened.
absl::Status CudaLane::AfterPeer(const CudaLane& other, uint64_t number) {
  return ToStatus(cudaStreamWaitEvent(stream_, other.EventOf(number), 0), "cudaStreamWaitEvent");
}

}  // namespace baton::cuda
