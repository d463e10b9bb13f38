#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "decode_worker/node.h"
#include "tests/unit/common/engine/worker_fakes.h"

namespace baton::bench {

// What the choices of one prompt cost a decode worker.
struct ChoicesCost {
  int32_t peak_blocks = 0;
  int64_t sent_bytes = 0;       // Of K/V, by handoffs.
  int64_t computed_tokens = 0;  // Here.
  int64_t copied_tokens = 0;    // Whose K/V was copied within the pool.
};

struct ChoicesRun {
  int32_t num_choices = 1;
  bool shared = true;  // Else each choice is handed over for itself, all at the same time.
  int32_t prompt_length = 2000;
  int32_t answer_length = 4;
  int32_t block_size = 16;
};

// A decode node with everything around it played as router, prefill worker and device do, and each
// handoff, step and block counted: nothing of it depends on time.
class ChoicesCounter {
 public:
  explicit ChoicesCounter(const ChoicesRun& run) : run_(run), model_(Model(run.block_size)) {}

  ChoicesCost Count() {
    for (CallId call = 1; call <= static_cast<CallId>(run_.num_choices); ++call) {
      if (!run_.shared || call == 1) Open(call, /*prefill=*/66);
    }
    for (const ExpectArgs& handoff : std::vector(transport_.expected)) Bring(handoff);
    // The first has a token of this worker now, and the router sends the others.
    for (CallId call = 2; run_.shared && call <= static_cast<CallId>(run_.num_choices); ++call) {
      Open(call, /*prefill=*/0);
    }
    while (!node_.idle()) {
      BATON_CHECK(runner_.plan != nullptr);
      const auto plan = std::exchange(runner_.plan, nullptr);
      cost_.computed_tokens += CountTokens(*plan);
      Handle(DoneWith(*plan, 55));
    }
    cost_.copied_tokens = node_.num_copied_tokens();
    return cost_;
  }

 private:
  class Runner : public ModelRunner {
   public:
    void Start(std::shared_ptr<const StepPlan> started) override { plan = std::move(started); }
    std::shared_ptr<const StepPlan> plan;
  };

  // K/V as Llama 3 8B's.
  static ModelInfo Model(int32_t block_size) {
    ModelInfo model = SmallModel();
    model.max_model_len = 8192;
    model.layout.block_size = block_size;
    model.layout.groups = {
        {.num_layers = 32, .num_kv_heads = 8, .k_dim = 128, .v_dim = 128, .dtype = DType::kBF16}};
    return model;
  }
  void Handle(DecodeMail mail) {
    node_.Handle(std::move(mail), now_);
    node_.Step(now_);
    cost_.peak_blocks = std::max(cost_.peak_blocks, pool_.num_blocks() - pool_.num_available());
  }
  void Open(CallId call, Incarnation prefill) {
    DecodeRequest request{.sequence = {1, call},
                          .prefill = prefill,
                          .prompt_length = run_.prompt_length,
                          .timeout = std::chrono::seconds(100)};
    request.tokens.resize(run_.prompt_length);
    std::iota(request.tokens.begin(), request.tokens.end(), 1000);
    request.sampling.max_tokens = run_.answer_length;
    request.sampling.choice = static_cast<int32_t>(call);
    request.tenant = "t";
    now_ += std::chrono::milliseconds(1);
    Handle(DecodeOpened{.call = call, .request = std::move(request)});
    BATON_CHECK(outbox_.Closed(call) == std::nullopt);
  }
  void Bring(const ExpectArgs& handoff) {
    const int64_t tokens = handoff.num_tokens - handoff.first_token;
    cost_.sent_bytes += tokens * (BlockBytes(model_.layout) / run_.block_size);
    TransferEvent event{
        .kind = TransferEvent::Kind::kBegun, .ticket = handoff.ticket, .receiver = true};
    Handle(event);
    event.kind = TransferEvent::Kind::kEnded;
    event.first = {.position = run_.prompt_length, .token = 50};
    Handle(event);
  }

  const ChoicesRun run_;
  const ModelInfo model_;
  ChoicesCost cost_;
  Time now_{};
  BlockAllocator pool_{4096, run_.block_size, 3};
  Runner runner_;
  RecordingTransport transport_;
  RecordingOutbox outbox_;
  uint64_t next_ticket_ = 1;
  DecodeNode node_{{77, {.chunk_tokens = 2048}, model_, pool_, runner_, transport_, outbox_},
                   {.ranks = {{"d:1", {0, 8}}}},
                   {.new_ticket = [this] { return TicketId{5, next_ticket_++}; },
                    .key_of = [](Incarnation) { return PairKey{}; }}};
};

inline ChoicesCost CountChoices(const ChoicesRun& run) { return ChoicesCounter(run).Count(); }

}  // namespace baton::bench
