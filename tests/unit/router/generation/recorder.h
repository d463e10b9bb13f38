#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "router/generation/generation_service.h"
#include "tests/unit/router/generation/fakes.h"

namespace baton {

// Keeps what it hears.
class Recorder : public GenerationSink {
 public:
  void OnPrompt(PromptLogprobs prompt) override {
    EXPECT_FALSE(ended);
    prompts.push_back(std::move(prompt));
  }
  void OnDelta(ChoiceDelta delta) override {
    EXPECT_FALSE(ended);
    const auto choice = static_cast<size_t>(delta.choice);
    text.resize(std::max(text.size(), choice + 1));
    finish.resize(text.size());
    EXPECT_EQ(finish[choice], FinishReason::kNone);
    text[choice] += delta.text;
    finish[choice] = delta.finish;
    deltas.push_back(std::move(delta));
  }
  void OnEnd(const absl::Status& s, const Usage& u) override {
    EXPECT_FALSE(ended);
    ended = true;
    status = s;
    usage = u;
  }

  std::vector<PromptLogprobs> prompts;
  std::vector<ChoiceDelta> deltas;
  std::vector<std::string> text;
  std::vector<FinishReason> finish;
  bool ended = false;
  absl::Status status;
  Usage usage;
};

inline GenerationServiceOptions Options() {
  GenerationServiceOptions options{.model_name = "tiny"};
  options.limits.max_model_len = 256;
  options.limits.vocab_size = FakeTokenizer::kSize;
  return options;
}

struct Outcome {
  std::shared_ptr<Recorder> sink = std::make_shared<Recorder>();
  std::shared_ptr<Generation> generation;
};

inline Outcome Generate(GenerationService& service, const GenerationRequest& request) {
  Outcome run;
  auto prepared = service.Prepare(request);
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  auto started = service.Start(*std::move(prepared), run.sink, nullptr);
  EXPECT_TRUE(started.ok()) << started.status();
  run.generation = started.value_or(nullptr);
  return run;
}

}  // namespace baton
