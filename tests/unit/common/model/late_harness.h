#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "tests/late_device/late_device.h"
#include "tests/unit/common/model/runner_harness.h"

namespace baton {

inline RunnerOptions CpuOptions() {
  return {.model_dir = BATON_SOURCE_DIR "/deploy/models/tiny-kjv",
          .num_blocks = 64,
          .swap_blocks = 16,
          .max_step_tokens = 128};
}

inline RunnerOptions Late(const LateOptions& late) {
  RunnerOptions options = CpuOptions();
  options.make_device = [late] { return std::make_unique<LateDevice>(late); };
  return options;
}

inline LateDevice& DeviceOf(LoadedRunner& runner) {
  return static_cast<LateDevice&>(runner.device());
}

inline std::shared_ptr<SamplingContext> LatePrompt(int32_t num_tokens, uint64_t seed = 1) {
  auto context = std::make_shared<SamplingContext>();
  Random random(seed);
  for (int32_t i = 0; i < num_tokens; ++i) {
    context->prompt.push_back(static_cast<int32_t>(random.Below(4096)));
  }
  context->params.logits_digest = true;
  context->params.num_logprobs = 2;
  return context;
}

inline std::vector<std::byte> BlockBytesOf(LoadedRunner& runner, const KvCache& pool,
                                           BlockId block) {
  std::vector<std::byte> all;
  const KvLayout& layout = pool.layout();
  for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
    for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      for (int32_t head = 0; head < GroupOfLayer(layout, layer).num_kv_heads; ++head) {
        const std::byte* at = pool.base() + pool.HeadBlockOffset(layer, plane, block, head);
        const auto part = DeviceOf(runner).Read(at, HeadBlockBytes(layout, layer, plane));
        all.insert(all.end(), part.begin(), part.end());
      }
    }
  }
  return all;
}

inline void FillBlock(LoadedRunner& runner, const KvCache& pool, BlockId block, std::byte value) {
  const KvLayout& layout = pool.layout();
  for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
    for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      const int64_t bytes =
          HeadBlockBytes(layout, layer, plane) * GroupOfLayer(layout, layer).num_kv_heads;
      std::byte* at = pool.base() + pool.HeadBlockOffset(layer, plane, block, 0);
      DeviceOf(runner).Fill(at, bytes, value);
    }
  }
}

// Looks at the moment of each report.
class WatchingSink : public RecordingSink {
 public:
  void OnLayerDone(const LayerDone& done) override {
    if (on_layer) on_layer(done.layer);
    RecordingSink::OnLayerDone(done);
  }
  void OnRowsDone(const RowsDone& done) override {
    if (on_rows) on_rows();
    RecordingSink::OnRowsDone(done);
  }
  void OnStepDone(StepDone done) override {
    ++num_steps;
    if (on_step) on_step(done);
    RecordingSink::OnStepDone(std::move(done));
  }

  std::function<void(int32_t)> on_layer;
  std::function<void()> on_rows;
  std::function<void(const StepDone&)> on_step;
  std::atomic<int> num_steps{0};
};

// A harness that says when StepDone came before all work had ended.
class LateHarness {
 public:
  explicit LateHarness(const LateOptions& late) : LateHarness(Late(late)) {}
  explicit LateHarness(const RunnerOptions& options) : harness_(options, &sink_) {
    sink_.on_step = [this](const StepDone&) { EXPECT_TRUE(device().idle()); };
  }
  RunnerHarness& operator*() { return harness_; }
  RunnerHarness* operator->() { return &harness_; }
  LateDevice& device() { return DeviceOf(harness_.runner()); }
  WatchingSink& sink() { return sink_; }

 private:
  WatchingSink sink_;
  RunnerHarness harness_;
};

inline constexpr LateOptions kAsked{.only_when_asked = true};

}  // namespace baton
