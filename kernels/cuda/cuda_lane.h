#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/api/device.h"
#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// A stream with its marks: event n % kMarks is that of mark n until mark n + kMarks is made, which
// waits for mark n. Those that a capture makes are numbered from kInGraph on, and have other
// events, which nobody asks. One thread at a time, its lane's.
class CudaLane {
 public:
  static constexpr uint64_t kMarks = 512;
  static_assert(kMarks > Device::kPeerMarks);
  static constexpr uint64_t kInGraph = uint64_t{1} << 63;
  static constexpr uint64_t kGraphMarks = 4;
  static_assert(kGraphMarks > Device::kGraphPeerMarks);

  CudaLane() = default;
  // After all work on it has ended.
  ~CudaLane();
  // The work on it never ends: nothing is destroyed.
  void Abandon();
  CudaLane(const CudaLane&) = delete;

  absl::Status Open(Lane lane, int priority);
  cudaStream_t stream() const { return stream_; }

  absl::StatusOr<Mark> MarkNow();
  // Amid a capture.
  absl::StatusOr<Mark> MarkInGraph();
  // Of a mark of this lane.
  absl::StatusOr<bool> IsDone(uint64_t number);
  // Whether all work on it has ended. From any thread.
  absl::StatusOr<bool> IsIdle() const;
  // What comes on this lane begins when a mark of `other` is done.
  absl::Status After(const CudaLane& other, uint64_t number);
  // As After, of a lane that another thread goes on using: as Device::AfterPeer.
  absl::Status AfterPeer(const CudaLane& other, uint64_t number);

 private:
  cudaEvent_t EventOf(uint64_t number) const {
    return number >= kInGraph ? graph_events_[number % kGraphMarks] : events_[number % kMarks];
  }

  Lane lane_ = Lane::kCompute;
  cudaStream_t stream_ = nullptr;
  std::array<cudaEvent_t, kMarks> events_ = {};
  std::array<cudaEvent_t, kGraphMarks> graph_events_ = {};
  uint64_t made_ = 0;  // The number of the last mark.
  uint64_t done_ = 0;  // The last that is known to be done.
  uint64_t made_in_graphs_ = kInGraph;
};

}  // namespace baton::cuda
