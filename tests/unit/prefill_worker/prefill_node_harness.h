#pragma once

#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "prefill_worker/node.h"
#include "tests/unit/common/engine/engine_harness.h"
#include "tests/unit/common/engine/worker_fakes.h"

namespace baton {

// A prefill worker of 12 blocks of 4 tokens for each group of layers and steps of 8 tokens;
// everything around it is played.
class PrefillNodeHarness : public testing::Test {
 protected:
  explicit PrefillNodeHarness(int32_t window = 0, int32_t finish_together = 0)
      : PrefillNodeHarness(SmallModel(window), finish_together) {}
  explicit PrefillNodeHarness(ModelInfo model, int32_t finish_together = 0)
      : model_(std::move(model)), finish_together_(finish_together) {}
  void TearDown() override {
    EXPECT_EQ(pool_.Audit(), "");
    EXPECT_EQ(outbox_.words_after_close, 0);
  }

  PrefillRequest Request(uint64_t id, int32_t length, bool handoff = true) {
    PrefillRequest request{
        .sequence = {1, id}, .prompt_length = length, .timeout = std::chrono::seconds(100)};
    request.tokens.resize(length);
    std::iota(request.tokens.begin(), request.tokens.end(), static_cast<int32_t>(1000 * id));
    request.tenant = "t";
    if (handoff) {
      request.handoff = HandoffTarget{.ticket = {9, id},
                                      .ranks = {{"d:1", {0, 4}}},
                                      .pair_key = {7},
                                      .decode = 77,
                                      .first_token = 0};
    }
    return request;
  }
  void Open(CallId call, PrefillRequest request) {
    Handle(PrefillOpened{.call = call, .request = std::move(request)});
  }
  void Handle(PrefillMail mail) {
    node_.Handle(std::move(mail), now_);
    node_.Step(now_);
  }
  void LayersDone() {
    const uint64_t step = runner_.plans.back()->step;
    for (int32_t layer : {0, 1}) Handle(LayerDone{.step = step, .layer = layer});
  }
  // The step in flight ends; its samplers draw 55.
  void FinishStep() {
    LayersDone();
    Handle(DoneWith(*runner_.plans.back(), 55));
  }
  void TransferEnds(uint64_t id, absl::Status status = absl::OkStatus()) {
    Handle(TransferEvent{.kind = TransferEvent::Kind::kEnded, .ticket = {9, id}, .status = status});
  }
  std::vector<std::tuple<int32_t, int32_t, int32_t>> Pushed() {  // Layer, first, count.
    std::vector<std::tuple<int32_t, int32_t, int32_t>> all;
    for (const PushArgs& p : transport_.pushed) {
      all.emplace_back(p.layer, p.first_token, p.num_tokens);
    }
    return all;
  }

  Time now_{};
  ModelInfo model_;
  int32_t finish_together_;
  BlockAllocator pool_{12 * NumGroups(model_.layout), 4, 3, WindowsOf(model_.layout)};
  ScriptedRunner runner_;
  RecordingTransport transport_;
  RecordingOutbox outbox_;
  PrefillNode node_{{.incarnation = 66,
                     .engine = {.chunk_tokens = 8, .finish_together = finish_together_},
                     .model = model_,
                     .allocator = pool_,
                     .runner = runner_,
                     .transport = transport_,
                     .outbox = outbox_},
                    {.max_waiting = 3}};
};

}  // namespace baton
