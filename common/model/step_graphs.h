#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/collective/rank_group.h"
#include "common/kv_cache/kv_cache.h"
#include "common/model/model_runner.h"
#include "common/model/step_metadata.h"
#include "common/model/transformer.h"
#include "kernels/api/device.h"

namespace baton {

// Decode steps as graphs: one launch in place of a pass's hundreds. A graph serves steps of up to
// its number of rows, each a token whose logits are wanted; StepMetadata fills it up. The upload
// before it and the product with the output layer behind it are not in it. Of several ranks it is
// one graph over the devices of all, which the first has: Communicator::Capture.
class StepGraphs {
 public:
  // What a graph takes of the device's memory, beside what passes take anyway.
  static constexpr int64_t kBytesOfOne = int64_t{1} << 20;

  // Those that steps of up to so many rows replay; a step of more than the last is no graph.
  static std::vector<int32_t> SizesFor(int64_t max_rows);

  // A graph is captured for sequences of up to `longest` tokens.
  struct Shape {
    int32_t rows;
    int32_t longest;
  };

  // All of it outlives the graphs and stays where it is.
  struct Parts {
    Device& device;
    Transformer& transformer;
    StepMetadata& metadata;
    KvCache& cache;
    Communicator* group;  // Of several ranks only.
  };
  // Before the first step. Each after a pass in which kernels are loaded, which touches no block.
  // Ranks call at the same time; after an error of one the group is to fail.
  absl::Status Capture(std::span<const Shape> shapes, const Parts& parts, const StepBounds& bounds);

  // The size of the smallest that has a plan's rows; 0: none serves it.
  int32_t SizeFor(const StepPlan& plan) const;
  // Null: the first rank has it.
  const Graph* Of(int32_t size) const { return graphs_.at(size).graph.get(); }

 private:
  struct Captured {
    int32_t longest;
    std::unique_ptr<Graph> graph;
  };
  std::map<int32_t, Captured> graphs_;
};

}  // namespace baton
