#pragma once

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "decode_worker/node.h"
#include "gtest/gtest.h"
#include "tests/unit/common/engine/engine_harness.h"
#include "tests/unit/common/engine/worker_fakes.h"

namespace baton {

// A decode worker of 10 blocks of 4 tokens for each group of layers; everything around it is
// played.
class DecodeNodeHarness : public testing::Test {
 protected:
  explicit DecodeNodeHarness(int32_t window = 0) : DecodeNodeHarness(SmallModel(window)) {}
  explicit DecodeNodeHarness(ModelInfo model, const EngineOptions& engine = {.chunk_tokens = 8})
      : model_(std::move(model)),
        node_{{77, engine, model_, pool_, runner_, transport_, outbox_},
              {.ranks = {{"d:1", {0, 4}}}},
              {.new_ticket = [this] { return TicketId{5, next_ticket_++}; },
               .key_of = [](Incarnation p) { return PairKey{static_cast<uint8_t>(p)}; }}} {}
  void TearDown() override {
    EXPECT_EQ(pool_.Audit(), "");
    EXPECT_EQ(outbox_.words_after_close, 0);
  }

  DecodeRequest Request(uint64_t id, int32_t length, int32_t max_tokens = 4) {
    DecodeRequest request{.sequence = {1, id},
                          .prefill = 66,
                          .prompt_length = length,
                          .timeout = std::chrono::seconds(100)};
    request.tokens.resize(length);
    std::iota(request.tokens.begin(), request.tokens.end(), static_cast<int32_t>(1000 * id));
    request.sampling.max_tokens = max_tokens;
    request.tenant = "t";
    return request;
  }
  // Each call is younger than the one before.
  void Open(CallId call, DecodeRequest request) {
    now_ += std::chrono::seconds(1);
    Handle(DecodeOpened{.call = call, .request = std::move(request)});
  }
  void Handle(DecodeMail mail) {
    node_.Handle(std::move(mail), now_);
    node_.Step(now_);
  }
  // The one that was given last.
  TicketId TicketOf(CallId call) { return outbox_.Events<ReservedEvent>(call).back().ticket; }
  void Begin(CallId call) {
    Handle(TransferEvent{
        .kind = TransferEvent::Kind::kBegun, .ticket = TicketOf(call), .receiver = true});
  }
  // The transfer ends; if it is verified, with `first` at `position`.
  void EndTransfer(CallId call, absl::Status status, TokenOutput first = {}) {
    Handle(TransferEvent{.kind = TransferEvent::Kind::kEnded,
                         .ticket = TicketOf(call),
                         .receiver = true,
                         .status = std::move(status),
                         .first = std::move(first),
                         .bytes = 100});
  }
  // Opens and hands over: the call decodes from its first token, 50.
  void Run(CallId call, int32_t length, int32_t max_tokens = 20) {
    Open(call, Request(call, length, max_tokens));
    Begin(call);
    EndTransfer(call, absl::OkStatus(), {.position = length, .token = 50});
  }
  void FinishStep(int32_t token = 55) { Handle(DoneWith(*runner_.plans.back(), token)); }
  std::vector<std::pair<int32_t, int32_t>> Tokens(CallId call) {  // Position, token.
    std::vector<std::pair<int32_t, int32_t>> all;
    for (const TokensEvent& event : outbox_.Events<TokensEvent>(call)) {
      for (const TokenOutput& o : event.outputs) all.emplace_back(o.position, o.token);
    }
    return all;
  }

  Time now_{};
  ModelInfo model_;
  BlockAllocator pool_{10 * NumGroups(model_.layout), 4, 3, WindowsOf(model_.layout)};
  ScriptedRunner runner_;
  RecordingTransport transport_;
  RecordingOutbox outbox_;
  uint64_t next_ticket_ = 1;
  DecodeNode node_;
};

}  // namespace baton
