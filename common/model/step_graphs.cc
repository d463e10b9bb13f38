#include "common/model/step_graphs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/model/device_memory.h"

namespace baton {
namespace {

absl::StatusOr<std::unique_ptr<Graph>> CaptureOne(const StepGraphs::Shape& shape,
                                                  const StepGraphs::Parts& parts,
                                                  StepBounds bounds) {
  bounds.max_model_len = shape.longest;
  RETURN_IF_ERROR(parts.metadata.Build(StepPlan(), bounds, shape.rows));
  RETURN_IF_ERROR(parts.metadata.Upload());
  const auto pass = [&] {
    return parts.transformer.Forward(parts.metadata, parts.cache,
                                     [](int32_t) { return absl::OkStatus(); });
  };
  const absl::Status passed = pass();
  // Also after an error: what was enqueued before it goes on, in memory that goes with the load.
  ASSIGN_OR_RETURN(const Mark mark, parts.device.MarkNow(Lane::kCompute));
  RETURN_IF_ERROR(Wait(parts.device, mark));
  RETURN_IF_ERROR(passed);
  return parts.group == nullptr ? parts.device.Capture(pass) : parts.group->Capture(pass);
}

}  // namespace

std::vector<int32_t> StepGraphs::SizesFor(int64_t max_rows) {
  std::vector<int32_t> sizes;
  for (const int32_t size : {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128}) {
    sizes.push_back(size);
    if (size >= max_rows) break;
  }
  return sizes;
}

absl::Status StepGraphs::Capture(std::span<const Shape> shapes, const Parts& parts,
                                 const StepBounds& bounds) {
  for (const Shape& shape : shapes) {
    auto graph = CaptureOne(shape, parts, bounds);
    if (absl::IsResourceExhausted(graph.status())) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a graph of ", shape.rows, " rows: ", graph.status().message(),
                       "; lower --gpu-memory-fraction or --num-blocks, or take --gpu-graphs off"));
    }
    RETURN_IF_ERROR(graph.status());
    graphs_.emplace(shape.rows, Captured{shape.longest, *std::move(graph)});
  }
  return absl::OkStatus();
}

int32_t StepGraphs::SizeFor(const StepPlan& plan) const {
  const auto graph = graphs_.lower_bound(static_cast<int32_t>(plan.rows.size()));
  if (graph == graphs_.end()) return 0;
  const bool serves = std::ranges::all_of(plan.rows, [&](const StepRow& row) {
    return row.tokens.size() == 1 && WantsLogits(row, 0) &&
           row.context_len < graph->second.longest;
  });
  return serves ? graph->first : 0;
}

}  // namespace baton
