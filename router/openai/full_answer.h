#pragma once

#include <memory>
#include <vector>

#include "common/http/http_server.h"
#include "router/openai/answer_format.h"

namespace baton {

// Collects a generation and answers it as one JSON document.
class FullAnswer : public GenerationSink {
 public:
  // `num_choices` of all prompts together.
  FullAnswer(AnswerContext context, size_t num_choices,
             std::shared_ptr<http::ResponseWriter> writer);

  void OnPrompt(PromptLogprobs prompt) override;
  void OnDelta(ChoiceDelta delta) override;
  void OnEnd(const absl::Status& status, const Usage& usage) override;

 private:
  Json ChoiceJson(size_t index);

  const AnswerContext context_;
  const std::shared_ptr<http::ResponseWriter> writer_;
  std::vector<ChoiceDelta> choices_;  // Each sums up its deltas.
  std::vector<PromptLogprobs> prompts_;
};

}  // namespace baton
