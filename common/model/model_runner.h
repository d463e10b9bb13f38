#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/base/sampling.h"
#include "common/base/time.h"
#include "common/kv_cache/kv_layout.h"

namespace baton {

// What of a request the runner needs beyond the tokens of this step; immutable, shared between the
// steps of one sequence.
struct SamplingContext {
  SamplingParams params;
  std::vector<int32_t> prompt;  // [prompt_length]; with a recovery still the client's prompt only.
};

// One sequence's part of a step: tokens at positions [context_len, context_len + tokens.size())
// are computed, their K/V written to the cache first and then attended to.
struct StepRow {
  SequenceId sequence;
  std::vector<int32_t> tokens;       // [>= 1]
  int32_t context_len = 0;           // Tokens whose K/V the cache holds already.
  std::vector<BlockId> block_table;  // Rows of the groups of layers, one after the other, each for
                                     // context_len + tokens.size() tokens; -1 for those that the
                                     // group's window has passed.
  bool sample = false;               // Sample the token that follows this row's last token.
  std::shared_ptr<const SamplingContext> sampling;
  std::vector<int32_t> emitted;  // Tokens produced so far; filled only when penalties
                                 // need them and sample is set.
  int32_t num_emitted = 0;       // Tokens produced before this step.
  int32_t scores_from = 1;       // Scores of the prompt's tokens before this position are known.
  // The sequence, all of its tokens, is longer than ModelInfo::original_len.
  bool is_long = false;
  // In a follow-up, the row of the step before it that samples this row's one token: what stands in
  // `tokens` counts for nothing, and `emitted` lacks it. -1: all tokens are known.
  int32_t follows = -1;
};

// A whole block of K/V, all its slots, from one pool to another or within one.
struct BlockMove {
  BlockId source = -1;
  BlockId destination = -1;
};

// Everything a forward pass needs; self-contained, so that the node may go on changing its
// sequences while it runs. Rows that prefill come first.
struct StepPlan {
  uint64_t step = 0;
  std::vector<StepRow> rows;        // May be empty when there are moves.
  std::vector<BlockMove> swap_out;  // Device to host; what else the step does writes neither.
  std::vector<BlockMove> swap_in;   // Host to device, before anything that reads it.
  // Within the device's pool, behind swap_in, before the rows. A source belongs to a row of the
  // step that only appends to it, a destination to another row.
  std::vector<BlockMove> copies;
};

// What one row of a step produced.
struct RowResult {
  SequenceId sequence;
  bool sampled = false;
  TokenOutput output;  // If sampled. `finish` is left kNone: the engine decides.
  std::vector<PromptLogprob> prompt_logprobs;  // If asked for: of the row's next tokens within the
                                               // prompt: positions context_len+1 .. context_len+n,
                                               // but for those before scores_from.
  absl::Status status;  // With an error the row has produced nothing; its K/V is not to be used.
};

// A layer of a step has written its K/V for every row.
struct LayerDone {
  uint64_t step = 0;
  int32_t layer = 0;
};

// So many rows of a step's logits have become tokens and scores. One for each slice of them
// (DeviceInfo::logit_rows), after the step's layers.
struct RowsDone {
  uint64_t step = 0;
  int32_t rows = 0;
};

// A step has ended. With an error no row has produced anything, and K/V of its tokens and of its
// moves is undefined.
struct StepDone {
  uint64_t step = 0;
  absl::Status status;
  std::vector<RowResult> rows;  // In the plan's order.
  Duration host{};  // From its start until the device had all of its layers to do.
};

// Computes steps in their order off the caller's thread. Of each LayerDone (ascending), RowsDone
// (likewise) and then StepDone come back as mail to the node that owns the runner, and nothing of
// the next one before.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  // Starts a step. Those before have reported StepDone; or it is the follow-up of the previous one,
  // which may have reported it or not: then all of its rows follow some of that. If the previous
  // one failed so does its follow-up, with its status; what follows a row that failed is any token.
  virtual void Start(std::shared_ptr<const StepPlan> plan) = 0;
};

int32_t CountTokens(const StepPlan& plan);

inline bool IsFollowUp(const StepPlan& plan) {
  return !plan.rows.empty() && plan.rows.front().follows >= 0;
}

// How a step has ended, as far as its follow-up needs it.
struct StepOutcome {
  absl::Status status;
  std::vector<int32_t> tokens;  // That each row has sampled; -1: none.
};
StepOutcome OutcomeOf(const StepDone& done);

// A follow-up with the tokens that the step before it has sampled.
std::shared_ptr<const StepPlan> WithTokens(const StepPlan& follow_up, const StepOutcome& before);

// A runner that ends steps before their time.
class StoppableRunner : public ModelRunner {
 public:
  // From now on a step ends with CANCELLED at once, one in progress before its next slice of rows.
  // Any thread. The destructor does so first.
  virtual void Stop() = 0;
};

// Where a production runner reports; called on the compute thread, must not block.
class RunnerSink {
 public:
  virtual ~RunnerSink() = default;
  virtual void OnLayerDone(const LayerDone& done) = 0;
  virtual void OnRowsDone(const RowsDone& done) = 0;
  virtual void OnStepDone(StepDone done) = 0;
};

// What the engine and hello need to know of a loaded model.
struct ModelInfo {
  std::string numerics_id;  // Kernel set, order version, compute and KV dtypes, order of sums.
  KvLayout layout;
  uint64_t model_digest = 0;  // Config, tensor table and weight bytes.
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;           // Positions the model supports.
  // K of a sequence is rotated otherwise, from the first token on, once it has more tokens than
  // this (longrope); 0: never.
  int32_t original_len = 0;
  std::vector<int32_t> eos_token_ids;  // From generation_config.json, else config.json.
};

}  // namespace baton
