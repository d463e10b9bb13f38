#pragma once

#include <cstdint>
#include <vector>

#include "common/engine/sequence.h"
#include "common/kv_cache/block_allocator.h"
#include "common/model/model_runner.h"

namespace baton {

// A bounded pool of blocks in host memory where preempted sequences keep their K/V. Moves are
// copies of whole blocks that the runner makes at the start of the next step; until that step has
// ended both ends of a move are held. Only the host's end of a move out goes with its sequence: it
// is not given out again before the step has ended, because moves begin with the next one. One
// thread (the node's).
class SwapSpace {
 public:
  // `device` outlives this.
  SwapSpace(int32_t num_blocks, BlockAllocator& device);

  // Moves the sequence's computed K/V out with the next step and takes its device blocks, which are
  // free once that step has ended. False, and nothing changed, when there is nothing to move or no
  // room for it.
  bool MoveOut(Sequence& sequence);

  // Moves it back in with the next step; the sequence's blocks cover its tokens, without those that
  // the window had passed when it moved out.
  void MoveIn(Sequence& sequence);

  // Device blocks will come back with the end of a step.
  bool frees_soon() const { return !leaving_.empty(); }
  // The step in flight, or the next, writes this sequence's device blocks.
  bool IsMovingIn(CallId call) const;
  const std::vector<CallId>& moving_in() const { return moving_in_; }
  const std::vector<CallId>& moving_out() const { return moving_out_; }

  // The moves of the step that starts now. True if there are any.
  bool AddTo(StepPlan& plan);
  // That step has ended.
  void OnStepDone();

  // Device tables that no sequence holds any more.
  const std::vector<BlockTable>& leaving() const { return leaving_; }
  // Host tables that no sequence holds any more.
  const std::vector<BlockTable>& arriving() const { return arriving_; }
  const BlockAllocator& host() const { return host_; }
  const BlockCounts& counts() const { return host_.counts(); }

 private:
  BlockAllocator& device_;
  BlockAllocator host_;  // A sequence's table there has the rows of that on the device.
  std::vector<BlockMove> out_;
  std::vector<BlockMove> in_;
  std::vector<CallId> moving_out_;
  std::vector<CallId> moving_in_;
  std::vector<BlockTable> leaving_;   // Of the device, read by moves out.
  std::vector<BlockTable> arriving_;  // Of the host, read by moves in.
};

}  // namespace baton
