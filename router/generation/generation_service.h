#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/random.h"
#include "common/base/time.h"
#include "common/checkpoint/generation_config.h"
#include "common/node/message.h"
#include "router/frontend.h"
#include "router/generation/answer_budget.h"
#include "router/generation/generation_request.h"
#include "router/generation/tenant_quotas.h"
#include "router/generation/tokenizer.h"

namespace baton {

// Runs a task soon, elsewhere; tasks of one executor run one at a time, in order. Empty = inline.
using SerialExecutor = std::function<void(std::function<void()>)>;

// Receives one generation. All calls come through the executor given to Start, one at a time:
// for each prompt its OnPrompt (if prompt log probabilities were asked for) before any OnDelta of
// its choices; each choice ends with exactly one delta whose finish is not kNone, unless OnEnd
// reports an error; OnEnd is the last call and comes exactly once.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  virtual void OnPrompt(PromptLogprobs prompt) = 0;
  virtual void OnDelta(ChoiceDelta delta) = 0;
  virtual void OnEnd(const absl::Status& status, const Usage& usage) = 0;

  // The answer's share of the process's memory: a sink lives as long as it holds anything.
  void Keep(std::shared_ptr<AnswerBudget::Share> share) { share_ = std::move(share); }

 protected:
  // This is written at once; what a sink keeps until its end goes with the sink.
  void GiveBack(const ChoiceDelta& taken) {
    if (share_ != nullptr) share_->Hold(-HeldBytes(taken.tokens.size(), taken.text.size()));
  }

 private:
  std::shared_ptr<AnswerBudget::Share> share_;
};

// Told what metrics need, on the executor of the request. Must be thread-safe and not block.
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  virtual void OnFirstToken(Duration since_start) = 0;
  virtual void OnNextToken(Duration since_previous) = 0;
  virtual void OnRequestEnd(const absl::Status& status, Duration since_start,
                            const Usage& usage) = 0;
  // In place of all that, of a request that was not read.
  virtual void OnRefusal(const absl::Status& status) = 0;
};

// A request that passed every check: what Start needs, and what an answer repeats.
struct PreparedGeneration {
  ValidRequest request;
  std::vector<std::string> prompt_texts;  // One per prompt with echo, else empty.
  std::vector<std::string> stop;
  bool echo = false;
  bool skip_special_tokens = true;
  int64_t prompt_tokens = 0;
  // What the answer will hold of log probabilities and prompts, and its share for that. Those
  // of produced tokens are counted as they come if nobody said how many there will be.
  int64_t answer_bytes = 0;
  bool counts_tokens = false;
  std::shared_ptr<AnswerBudget::Share> share;
};

// A running generation. Thread-safe; may outlive the service's answer.
class Generation {
 public:
  virtual ~Generation() = default;
  // The client is gone: ends the request on all workers. OnEnd(CANCELLED) follows unless the
  // request has ended. Idempotent.
  virtual void Cancel() = 0;
};

struct GenerationLimits {
  int32_t max_model_len = 0;  // Prompt and answer together.
  int32_t vocab_size = 0;
  int32_t max_output_tokens = 0;  // Cap of max_tokens; 0 = max_model_len.
  int64_t max_prompt_bytes = int64_t{4} << 20;
  int32_t max_stop_strings = 16;
  int32_t max_stop_bytes = 256;
  int32_t max_stop_token_ids = 128;
  int32_t max_logprobs = 20;
  // Log probabilities of one answer: scored tokens x (alternatives + 1) x choices.
  int64_t max_scores = 1'000'000;
  int32_t max_logit_biases = 4096;
  // What the answers of all requests may hold of log probabilities and of prompts, also while
  // slow readers take them. More is refused until some have ended, and for good if one alone asks
  // for more.
  int64_t max_answer_bytes = int64_t{256} << 20;
  int32_t max_label_bytes = 128;
  int32_t max_requests_per_tenant = 0;  // At a time; 0 = no limit.
  Duration default_timeout = std::chrono::seconds(3600);
};

struct GenerationServiceOptions {
  std::string model_name;  // As served: `model` of requests and answers.
  GenerationLimits limits;
  std::map<std::string, TenantLimits> tenants;  // Of those that differ from `limits`.
  GenerationConfig defaults;    // Of the model; see sampling_defaults.h.
  std::function<Time()> clock;  // For the observer; empty = it is told zero durations.
  std::function<QuotaTime()> quota_clock;  // Empty = no bucket fills, and no day ends.
  uint64_t random_seed = 1;     // Of drawn seeds and ids: from the operating system.
  GenerationObserver* observer = nullptr;  // Outlives the service; null = none.
};

// The layer between the text APIs (HTTP, gRPC) and the router's node: text in, text out. It owns
// the tokenizer and does all that is the same for every API: templates and tokenizing, defaults,
// limits and validation, and for each choice detokenizing, stop strings, log probabilities with
// text, usage. Thread-safe. Use: Prepare, then Start. Both may take as long as tokenizing takes
// (call them on a thread that may); they never wait for the cluster.
//
// Errors carry their field, see error.h: ErrorParam(status) is empty or the name of the field.
class GenerationService {
 public:
  // `frontend` outlives the service. `tokenizer` is null for a folder without one: then only
  // prompts of token ids are served, text is empty, and what needs text is refused.
  GenerationService(GenerationServiceOptions options, std::shared_ptr<const Tokenizer> tokenizer,
                    RouterFrontend* frontend);

  // Before anything of a request is read: RESOURCE_EXHAUSTED if its tenant has no room in its quota
  // for any, or none in a queue that is full. What it is worth, Start says.
  absl::Status CheckRoom(const std::string& tenant) const;

  // Template, tokenize, defaults, limits. INVALID_ARGUMENT names the field. RESOURCE_EXHAUSTED when
  // answers hold all they may, before anything more is made for this one, and when the tenant's
  // quota has no room, before anything is.
  absl::StatusOr<PreparedGeneration> Prepare(const GenerationRequest& request);

  // Submits. On an error (RESOURCE_EXHAUSTED when full or over the tenant's quota) the
  // sink is never called. The sink may be called before Start returns.
  absl::StatusOr<std::shared_ptr<Generation>> Start(PreparedGeneration prepared,
                                                    std::shared_ptr<GenerationSink> sink,
                                                    SerialExecutor executor);

  // Replaces `tenants` of the options, for requests that start from now on.
  void SetTenants(std::map<std::string, TenantLimits> tenants) {
    quotas_->SetLimits(std::move(tenants));
  }

  // A prompt's token ids, as Prepare would make them; no limit but the prompt's bytes.
  // `prompt_param` names the field in errors.
  absl::StatusOr<std::vector<int32_t>> Tokenize(const Prompt& prompt,
                                                std::optional<bool> add_special_tokens,
                                                std::string_view prompt_param) const;
  // Text of ids, special tokens included. INVALID_ARGUMENT names `param` for an id out of range.
  absl::StatusOr<std::string> Detokenize(const std::vector<int32_t>& ids,
                                         std::string_view param) const;
  // One token's text, valid UTF-8.
  std::string TokenString(int32_t id) const;

  // Checks `model` of a request; empty = the served one. NOT_FOUND with param and code.
  absl::Status CheckModel(std::string_view model) const;

  // 32 random hex digits, for answers whose request brought no label.
  std::string NewId();

  const GenerationServiceOptions& options() const { return options_; }
  RouterFrontend& frontend() const { return *frontend_; }
  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  int64_t answer_bytes() const { return budget_->used(); }

 private:
  QuotaTime QuotaNow() const { return options_.quota_clock ? options_.quota_clock() : QuotaTime(); }
  std::function<void(std::optional<int64_t> used_tokens)> Releaser(
      const Reservation& reservation) const;
  absl::Status Echo(const GenerationRequest& request, size_t prompt,
                    PreparedGeneration& prepared) const;
  // `asked`, if any: whose prompt it is; a text that is certainly too long for it is not tokenized.
  absl::StatusOr<std::vector<int32_t>> TokensOf(const Prompt& prompt,
                                                std::optional<bool> add_special_tokens,
                                                std::string_view prompt_param,
                                                const GenerationRequest* asked) const;
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool special_tokens,
                                              std::string_view prompt_param,
                                              const GenerationRequest* asked) const;
  uint64_t NextRandom();

  const GenerationServiceOptions options_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  RouterFrontend* const frontend_;
  // Shared with the sessions, which may outlive the service.
  const std::shared_ptr<TenantQuotas> quotas_;
  const std::shared_ptr<AnswerBudget> budget_;
  absl::Mutex mutex_;
  Random random_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton
