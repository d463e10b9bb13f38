#pragma once

#include <cstdint>

#include "common/model/forward_batch.h"
#include "common/model/model_runner.h"

namespace baton {

// The bounds that a plan must keep; a plan that does not is our own bug and ends the process before
// anything is computed.
struct StepBounds {
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;
  int32_t block_size = 0;
  int32_t num_blocks = 0;
  int32_t window = 0;  // As in KvLayerGroup.
};

// Flattens a plan into `batch`, reusing its memory. Logits are asked for the last token of rows
// that sample and for the tokens of rows whose prompt is to be scored.
void BuildForwardBatch(const StepPlan& plan, const StepBounds& bounds, ForwardBatch& batch);

// Whether row token `index` predicts a prompt token whose log probability was asked for.
bool ScoresPrompt(const StepRow& row, int64_t index);

}  // namespace baton
