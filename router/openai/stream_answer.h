#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/http/http_server.h"
#include "router/openai/answer_format.h"

namespace baton {

// Answers a generation as server-sent events, one per delta. The HTTP answer begins with the
// first delta, so that what fails before it still gets its status code; later failures are an
// error event and the end of the connection.
class StreamAnswer : public GenerationSink {
 public:
  StreamAnswer(AnswerContext context, size_t num_choices, int64_t prompt_tokens,
               std::shared_ptr<http::ResponseWriter> writer);

  void OnPrompt(PromptLogprobs prompt) override;
  void OnDelta(ChoiceDelta delta) override;
  void OnEnd(const absl::Status& status, const Usage& usage) override;

 private:
  // An event with this one choice (or none), and with the usage so far if that was asked for.
  void AppendEvent(Json choices, std::string& out);
  void Send(std::string events);

  const AnswerContext context_;
  const std::shared_ptr<http::ResponseWriter> writer_;
  std::vector<PromptLogprobs> prompts_;
  std::vector<bool> begun_;  // By choice.
  bool streaming_ = false;
  Usage usage_;
};

}  // namespace baton
