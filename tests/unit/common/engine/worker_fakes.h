#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "common/node/node.h"

namespace baton {

// Keeps what a worker's node asked of its transport. The test plays the transport's events.
class RecordingTransport : public KvTransport {
 public:
  void Expect(ExpectArgs args) override { expected.push_back(std::move(args)); }
  void Start(StartArgs args) override { started.push_back(std::move(args)); }
  void Push(PushArgs args) override { pushed.push_back(args); }
  void Finish(FinishArgs args) override { finished.push_back(std::move(args)); }
  void Abort(TicketId ticket) override { aborted.push_back(ticket); }
  std::vector<OpenLeg> OpenLegs() const override { return legs; }

  std::vector<ExpectArgs> expected;
  std::vector<StartArgs> started;
  std::vector<PushArgs> pushed;
  std::vector<FinishArgs> finished;
  std::vector<TicketId> aborted;
  std::vector<OpenLeg> legs;
};

// Keeps what a worker's node answered, per call.
class RecordingOutbox : public WorkerOutbox {
 public:
  struct Answers {
    std::vector<WorkerEvent> events;
    std::optional<absl::Status> closed;
  };

  void Emit(CallId call, WorkerEvent event) override {
    words_after_close += calls[call].closed.has_value();
    calls[call].events.push_back(std::move(event));
  }
  void Close(CallId call, absl::Status status) override {
    words_after_close += calls[call].closed.has_value();
    calls[call].closed = std::move(status);
  }

  // How the call was closed; nothing while it is open.
  std::optional<absl::StatusCode> Closed(CallId call) {
    if (!calls[call].closed) return std::nullopt;
    return calls[call].closed->code();
  }
  template <typename Event>
  std::vector<Event> Events(CallId call) {
    std::vector<Event> events;
    for (const WorkerEvent& event : calls[call].events) {
      if (auto* one = std::get_if<Event>(&event)) events.push_back(*one);
    }
    return events;
  }

  std::map<CallId, Answers> calls;
  int words_after_close = 0;
};

// What the runner reports of a step in which every sampling row gets `token`.
inline StepDone DoneWith(const StepPlan& plan, int32_t token) {
  StepDone done{.step = plan.step};
  for (const StepRow& row : plan.rows) {
    const auto end = row.context_len + static_cast<int32_t>(row.tokens.size());
    RowResult result{.sequence = row.sequence,
                     .sampled = row.sample,
                     .output = {.position = end, .token = token}};
    const auto& prompt = row.sampling->prompt;
    const int32_t first = std::max(row.context_len + 1, row.scores_from);
    for (int32_t p = first; p <= end && p < static_cast<int32_t>(prompt.size()) &&
                            row.sampling->params.num_prompt_logprobs >= 0;
         ++p) {
      result.prompt_logprobs.push_back({.position = p, .token = prompt[p]});
    }
    done.rows.push_back(std::move(result));
  }
  return done;
}

// Two layers, blocks of 4 tokens, end token 1; a sliding window of so many tokens, 0 = none.
inline ModelInfo SmallModel(int32_t window = 0) {
  return {.numerics_id = "test",
          .layout = {.block_size = 4,
                     .groups = {{.num_layers = 2,
                                 .num_kv_heads = 1,
                                 .k_dim = 8,
                                 .v_dim = 8,
                                 .window = window}}},
          .model_digest = 42,
          .vocab_size = 100000,
          .max_model_len = 60,
          .eos_token_ids = {1}};
}

// The same with groups of layers: layer 0 sees all tokens, layer 1 has a window beside which so
// many more are kept.
inline ModelInfo GroupedModel(int32_t window, int32_t spare) {
  ModelInfo model = SmallModel();
  KvLayerGroup& wide = model.layout.groups[0];
  wide.num_layers = 1;
  KvLayerGroup windowed = wide;
  windowed.window = window;
  windowed.spare = spare;
  model.layout.groups.push_back(windowed);
  return model;
}

}  // namespace baton
