#include "tests/sim/fake_model.h"

#include <utility>

#include "common/engine/sequence.h"

namespace baton::sim {

uint64_t TagOf(int32_t layer, int32_t token, int32_t position, uint64_t previous) {
  return Random::Mix(previous ^ Random::Mix((uint64_t(layer) << 48) ^ (uint64_t(position) << 24) ^
                                            uint64_t(token)));
}

int32_t NextToken(uint64_t folded, const SamplingParams& params, int32_t position) {
  const uint64_t draw =
      Random::Mix(folded ^ Random::Mix(params.seed + 7919 * params.choice) ^ uint64_t(position));
  return static_cast<int32_t>(draw % kVocab);
}

std::vector<int32_t> ExpectedTokens(const std::vector<int32_t>& prompt,
                                    const SamplingParams& params) {
  std::vector<int32_t> tokens;
  uint64_t previous[kLayers] = {};
  uint64_t folded = 0;
  std::vector<uint64_t> folds(kLayers, 0);
  auto feed = [&](int32_t token, int32_t position) {
    folded = 0;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      previous[layer] = TagOf(layer, token, position, previous[layer]);
      folds[layer] = Random::Mix(folds[layer] ^ previous[layer]);
      folded ^= folds[layer];
    }
  };
  int32_t position = 0;
  for (int32_t token : prompt) feed(token, position++);
  while (true) {
    const int32_t token = NextToken(folded, params, position);
    tokens.push_back(token);
    if (FinishAfter(params, {kEos}, token, static_cast<int32_t>(tokens.size())) !=
        FinishReason::kNone) {
      return tokens;
    }
    feed(token, position++);
  }
}

FakeRunner::FakeRunner(World& world, TagMemory& memory, const Faults& faults, Mail mail)
    : world_(world), memory_(memory), faults_(faults), mail_(std::move(mail)) {}

void FakeRunner::Start(std::shared_ptr<const StepPlan> plan) {
  folded_.assign(plan->rows.size(), 0);
  const Duration layer_time = world_.Micros(50, 2000);
  const bool fails = world_.Chance(faults_.step_error);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    world_.After(layer_time * (layer + 1), [this, alive = alive_, plan, layer] {
      if (!*alive) return;
      RunLayer(*plan, layer);
      mail_(LayerDone{.step = plan->step, .layer = layer});
    });
  }
  world_.After(layer_time * (kLayers + 1), [this, alive = alive_, plan, fails] {
    if (!*alive) return;
    mail_(fails ? StepDone{.step = plan->step, .status = absl::InternalError("injected")}
                : Results(*plan));
  });
}

void FakeRunner::RunLayer(const StepPlan& plan, int32_t layer) {
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      const int32_t position = row.context_len + static_cast<int32_t>(i);
      const uint64_t previous =
          position == 0 ? 0 : memory_.AtToken(layer, row.block_table, position - 1);
      memory_.AtToken(layer, row.block_table, position) =
          TagOf(layer, row.tokens[i], position, previous);
    }
    // Attention: every position of the context is read back.
    uint64_t fold = 0;
    const int32_t length = row.context_len + static_cast<int32_t>(row.tokens.size());
    for (int32_t position = 0; position < length; ++position) {
      fold = Random::Mix(fold ^ memory_.AtToken(layer, row.block_table, position));
    }
    folded_[r] ^= fold;
  }
}

StepDone FakeRunner::Results(const StepPlan& plan) {
  StepDone done{.step = plan.step};
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const StepRow& row = plan.rows[r];
    const int32_t end = row.context_len + static_cast<int32_t>(row.tokens.size());
    RowResult result{.sequence = row.sequence, .sampled = row.sample};
    if (row.sample) {
      result.output = {.position = end, .token = NextToken(folded_[r], row.sampling->params, end)};
    }
    if (row.sampling->params.num_prompt_logprobs >= 0) {
      const auto& prompt = row.sampling->prompt;
      for (int32_t p = row.context_len + 1; p <= end && p < static_cast<int32_t>(prompt.size());
           ++p) {
        result.prompt_logprobs.push_back({.position = p, .token = prompt[p]});
      }
    }
    done.rows.push_back(std::move(result));
  }
  return done;
}

}  // namespace baton::sim
