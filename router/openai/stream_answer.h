#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/http/http_server.h"
#include "router/generation/pending_deltas.h"
#include "router/openai/answer_format.h"
#include "router/openai/text_pieces.h"

namespace baton {

// Answers a generation as server-sent events: one per delta, or one for several while the client
// does not keep up, made when it has room for them. The HTTP answer begins with the first delta, so
// that what fails before it still gets its status code; later failures are an error event and the
// end of the connection.
class StreamAnswer : public GenerationSink, public std::enable_shared_from_this<StreamAnswer> {
 public:
  StreamAnswer(AnswerContext context, size_t num_choices, int64_t prompt_tokens,
               std::shared_ptr<http::ResponseWriter> writer);

  void OnPrompt(PromptLogprobs prompt) override;
  void OnDelta(ChoiceDelta delta) override;
  void OnEnd(const absl::Status& status, const Usage& usage) override;

 private:
  struct Ended {
    absl::Status status;
    Usage usage;
  };

  // Writes what there is while the client has room for it.
  void Pump();
  bool HasMore() const { return !event_.done() || !pending_.empty() || ended_.has_value(); }
  void AddNextEvent();
  void AddRole(size_t index);
  void AddLastEvents();
  std::string UsageSoFar() const;
  void Write(std::string piece);

  const std::shared_ptr<const AnswerContext> context_;
  const std::shared_ptr<http::ResponseWriter> writer_;
  const std::string event_head_;  // Of each event with a choice, up to that.
  std::vector<std::shared_ptr<const TokenScores>> prompts_;
  std::vector<bool> begun_;  // By choice.
  PendingDeltas pending_;
  TextPieces event_;  // The one that is being written.
  std::optional<Ended> ended_;
  bool streaming_ = false;
  bool awaits_room_ = false;
  bool finished_ = false;
  Usage usage_;  // Of what was written.
};

}  // namespace baton
