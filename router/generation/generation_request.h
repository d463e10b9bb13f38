#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/sampling.h"
#include "common/base/time.h"
#include "router/generation/token_scores.h"

// A request for text as HTTP and gRPC give it, before the model's limits were looked at, and the
// answer as they receive it. No protobuf, no JSON (except what a chat template eats), no socket.
namespace baton {

// A conversation: `messages_json` is a JSON array of objects without nulls.
struct ChatPrompt {
  std::string messages_json;
  std::string template_kwargs_json;  // A JSON object; empty = none.
  bool add_generation_prompt = true;
};

// Text, token ids, or a conversation.
using Prompt = std::variant<std::string, std::vector<int32_t>, ChatPrompt>;

struct GenerationRequest {
  std::string label;   // The client's request_id.
  std::string tenant;  // Salts the prefix cache; counted against the tenant's quota.
  std::vector<Prompt> prompts;
  std::optional<bool> add_special_tokens;  // Absent: true for text, false for a conversation.

  // Sampling. Absent = generation_config.json, then OpenAI's default. Ranges are checked.
  std::optional<double> temperature;
  std::optional<int64_t> top_k;  // -1 or 0 = off.
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> presence_penalty;
  std::vector<LogitBias> logit_bias;  // Any order; each token once.
  std::optional<int64_t> seed;        // Absent = drawn once for the request.
  std::optional<int64_t> max_tokens;
  // Stands in for max_tokens, clipped to what remains of the model's length; absent = all of it.
  std::optional<int64_t> default_max_tokens;
  std::string max_tokens_param = "max_tokens";  // The field's name in errors.
  std::string prompt_param = "prompt";          // Likewise; "messages" for a conversation.
  std::optional<int64_t> min_tokens;
  std::optional<int64_t> n;
  bool ignore_eos = false;
  std::vector<int64_t> stop_token_ids;
  std::vector<std::string> stop;
  bool skip_special_tokens = true;

  bool echo = false;                // max_tokens 0 is allowed only with it.
  std::optional<int64_t> logprobs;  // 0 = the chosen token's only, k = and the top k.
  std::string logprobs_param = "logprobs";
  std::optional<int64_t> prompt_logprobs;  // The same for the prompt's tokens.
  bool logits_digests = false;
  bool returns_prompt_ids = false;  // They are held until the reader has the answer.

  int64_t priority = 0;
  Duration timeout{};  // 0 = the service's default.
  int64_t bytes = 0;   // Size of the client's body.
};

// A token as a client may see it. `text` is valid UTF-8 (U+FFFD where the bytes are no text).
struct TokenText {
  int32_t id = 0;
  float logprob = 0;
  std::string text;
  std::string bytes;
};

// One token with its alternatives, as it is written. The first token of a prompt has no log
// probability.
struct TokenLogprobs {
  TokenText chosen;
  bool has_logprob = true;
  int32_t rank = 0;            // Prompt tokens only; 1 = the most likely.
  std::vector<TokenText> top;  // As many as asked for, descending; may hold the chosen one too.
  int64_t text_offset = 0;     // Code points before it: of the echo (if any) and the answer.
};

// What one event adds to one choice. Tokens come with the event that produced them, text as soon
// as it can no longer become part of a stop string or of a longer UTF-8 sequence.
struct ChoiceDelta {
  int32_t choice = 0;  // prompt * n + c.
  int32_t prompt = 0;
  std::string text;  // Without the stop string, without the end token.
  std::vector<int32_t> tokens;
  TokenScores logprobs;                  // One per token, if asked for.
  std::vector<uint64_t> logits_digests;  // One per token, if asked for.
  FinishReason finish = FinishReason::kNone;
  // Why it stopped, with kStop: the stop string, or one of the request's stop_token_ids.
  std::optional<std::string> stop_string;
  std::optional<int32_t> stop_token;
};

// What tokens with that text take while they wait for their reader: id, digest and end of text, in
// arrays that grow by doubling. Log probabilities are counted by themselves.
inline int64_t HeldBytes(size_t num_tokens, size_t text_bytes) {
  return static_cast<int64_t>(40 * num_tokens + text_bytes);
}

// Log probabilities of a prompt, one per token of it: held once, whatever the number of choices.
struct PromptLogprobs {
  int32_t prompt = 0;
  std::shared_ptr<const TokenScores> tokens;
};

struct Usage {
  int64_t prompt_tokens = 0;  // Each prompt once, whatever n is.
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;  // Known at the end only.
};

}  // namespace baton
