#pragma once

#include <memory>
#include <vector>

#include "common/http/http_server.h"
#include "router/openai/answer_format.h"
#include "router/openai/text_pieces.h"

namespace baton {

// Collects a generation and answers it as one JSON document. A long one is made while the client
// takes it.
class FullAnswer : public GenerationSink, public std::enable_shared_from_this<FullAnswer> {
 public:
  // `num_choices` of all prompts together.
  FullAnswer(AnswerContext context, size_t num_choices,
             std::shared_ptr<http::ResponseWriter> writer);

  void OnPrompt(PromptLogprobs prompt) override;
  void OnDelta(ChoiceDelta delta) override;
  void OnEnd(const absl::Status& status, const Usage& usage) override;

 private:
  TextPieces Body(const Usage& usage);

  const std::shared_ptr<const AnswerContext> context_;
  const std::shared_ptr<http::ResponseWriter> writer_;
  std::vector<ChoiceDelta> choices_;  // Each sums up its deltas.
  std::vector<std::shared_ptr<const TokenScores>> prompts_;
};

}  // namespace baton
