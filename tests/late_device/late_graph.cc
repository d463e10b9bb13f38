#include "tests/late_device/late_graph.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton {

absl::StatusOr<std::unique_ptr<Graph>> LateDevice::Capture(
    absl::FunctionRef<absl::Status()> enqueue) {
  auto graph = std::make_unique<LateGraph>();
  {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(MayCall(Lane::kCompute));
    graph->parts.push_back({.device = this});
    recording_ = graph.get();
    part_ = 0;
    is_amid_ = true;
  }
  absl::Status status = enqueue();
  const std::lock_guard lock(mutex_);
  is_amid_ = false;
  for (const LateGraph::Part& part : graph->parts) part.device->recording_ = nullptr;
  for (size_t part = 1; part < graph->parts.size(); ++part) {
    if (graph->joined[part] == graph->parts[part].works.size()) continue;
    status.Update(absl::FailedPreconditionError(
        absl::StrCat("late: the capture has not waited for device ", part)));
  }
  RETURN_IF_ERROR(status);
  return graph;
}

absl::StatusOr<Mark> LateDevice::Join(const Device& peer, Mark begin,
                                      absl::FunctionRef<absl::Status()> enqueue) {
  const auto& other = static_cast<const LateDevice&>(peer);
  {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(MayCall(Lane::kCompute));
    if (other.recording_ == nullptr || begin.number < kInGraph) {
      return absl::FailedPreconditionError("late: there is no capture to join");
    }
    recording_ = other.recording_;
    part_ = recording_->parts.size();
    recording_->parts.push_back({.device = this});
    is_amid_ = true;
    RETURN_IF_ERROR(FollowInGraph(other, begin));
  }
  const absl::Status status = enqueue();
  const std::lock_guard lock(mutex_);
  is_amid_ = false;
  RETURN_IF_ERROR(status);
  return MarkInGraph();
}

Mark LateDevice::MarkInGraph() const {
  return {.lane = Lane::kCompute, .number = kInGraph + recording_->parts[part_].works.size()};
}

absl::Status LateDevice::FollowInGraph(const LateDevice& other, Mark mark) {
  if (lost_) return MayCall(Lane::kCompute);
  if (!is_amid_ || other.recording_ != recording_) {
    return absl::FailedPreconditionError("late: a mark of a graph is waited for outside of it");
  }
  const uint64_t count = mark.number - kInGraph;
  recording_->parts[part_].works.push_back({.of = other.part_, .count = count});
  if (part_ == 0) recording_->joined[other.part_] = count;
  return absl::OkStatus();
}

absl::Status LateDevice::Launch(const Graph& graph) {
  RETURN_IF_ERROR(FailIfTold("Launch"));
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(MayCall(Lane::kCompute));
  const std::vector<LateGraph::Part>& parts = static_cast<const LateGraph&>(graph).parts;
  if (parts[0].device != this) return absl::FailedPreconditionError("late: another's graph");
  ++num_launches_;
  const Mark begin{.lane = Lane::kCompute,
                   .number = lanes_[static_cast<int>(Lane::kCompute)].enqueued};
  const auto lane_of = [](size_t part) { return part == 0 ? Lane::kCompute : kGraphLane; };
  // The mark behind no work of each.
  std::vector<Mark> none;
  for (size_t part = 0; part < parts.size(); ++part) {
    LateDevice& device = *parts[part].device;
    const Lane lane = lane_of(part);
    if (part > 0) device.EnqueueLocked(lane, {.run = nullptr, .after = begin, .of = ends_});
    none.push_back({.lane = lane, .number = device.lanes_[static_cast<int>(lane)].enqueued});
  }
  for (size_t part = 0; part < parts.size(); ++part) {
    for (const LateGraph::PartWork& work : parts[part].works) {
      Mark after;
      if (work.run == nullptr) {
        after = {.lane = none[work.of].lane, .number = none[work.of].number + work.count};
      }
      parts[part].device->EnqueueLocked(
          lane_of(part), {.run = work.run, .after = after, .of = parts[work.of].device->ends_});
    }
  }
  return absl::OkStatus();
}

}  // namespace baton
