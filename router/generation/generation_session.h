#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/generation/choice_text.h"
#include "router/generation/generation_service.h"
#include "router/generation/token_details.h"

namespace baton {

// One running request between the node (events of tokens) and a sink (text, on the request's
// executor, to which the events are handed over).
class GenerationSession : public Generation,
                          public ResponseSink,
                          public std::enable_shared_from_this<GenerationSession> {
 public:
  struct Setup {
    PreparedGeneration prepared;
    std::shared_ptr<GenerationSink> sink;
    SerialExecutor executor;
    std::shared_ptr<const Tokenizer> tokenizer;  // Null without one.
    RouterFrontend* frontend = nullptr;
    std::function<Time()> clock;
    GenerationObserver* observer = nullptr;
    std::shared_ptr<AnswerBudget::Share> share;
    // Called once, when the request has ended: so many tokens were read or written for it; nothing:
    // it was refused, and costs nothing.
    std::function<void(std::optional<int64_t> used_tokens)> release;
  };
  explicit GenerationSession(Setup setup);
  ~GenerationSession() override;

  // The frontend took the request under this key.
  void Submitted(uint64_t key);
  // The frontend refused: the sink will not be called.
  void Abandon() { Release(std::nullopt); }

  void OnEvent(ClientEvent event) override;
  void Cancel() override;

 private:
  void Release(std::optional<int64_t> used_tokens);
  struct Choice {
    ChoiceText text;
    FinishReason finish = FinishReason::kNone;
    std::optional<Time> last_token;
  };
  struct PromptState {
    std::unique_ptr<PromptScorer> scorer;  // Until all log probabilities that are wanted have come.
    int64_t text_length = 0;            // Code points of the echo.
    std::vector<ChoiceTokens> waiting;  // Tokens that came before the prompt's scores.
  };

  void Receive(ClientEvent event);
  void Receive(ChoiceTokens tokens);
  void Receive(PromptScored scored);
  void Receive(RequestEnded ended);
  bool IsScored(int32_t prompt);
  void PushToken(int32_t index, const TokenOutput& output, ChoiceDelta& delta);
  void FinishChoice(int32_t index, FinishReason finish, ChoiceDelta& delta);
  void End(absl::Status status, int64_t cached_tokens);
  void Fail(absl::Status status);
  void StopChoice(int32_t index);
  void Observe(Choice& choice);
  Time Now() const { return setup_.clock ? setup_.clock() : Time{}; }

  Setup setup_;
  const int32_t num_choices_;  // Per prompt.
  const SamplingParams sampling_;
  const Time start_;

  // Used on the executor only.
  std::vector<Choice> choices_;
  std::vector<PromptState> prompt_states_;
  bool first_token_seen_ = false;
  bool ended_ = false;
  absl::Status failure_;  // Ours; reported instead of what the node says after the cancel.
  Usage usage_;

  absl::Mutex mutex_;
  // Absent until Submit returned; what was asked for before then waits.
  std::optional<uint64_t> key_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<int32_t> stopped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
