#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

// Turns one sequence's tokens into text as they come. One thread at a time.
class StreamDecoder {
 public:
  virtual ~StreamDecoder() = default;
  // The text that became final with this token: whole UTF-8 sequences, maybe empty.
  virtual absl::StatusOr<std::string> Push(int32_t token) = 0;
  // The rest, after the last token; an incomplete sequence becomes U+FFFD.
  virtual absl::StatusOr<std::string> Flush() = 0;
};

struct ChatTemplateOptions {
  std::string kwargs_json;  // A JSON object of further template variables; empty = none.
  bool add_generation_prompt = true;
};

// Tokens of texts that were encoded lately.
struct TokenCacheInfo {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t bytes = 0;
};

// What the text APIs need of a model's tokenizer: router/text's codec behind codec_tokenizer.h,
// a small fake in tests. Thread-safe. Ids out of range are INVALID_ARGUMENT.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                                      bool add_special_tokens) const = 0;
  virtual absl::StatusOr<std::string> Decode(std::span<const int32_t> ids,
                                             bool skip_special_tokens) const = 0;
  // The exact bytes that a token stands for; maybe not valid UTF-8. Empty for an unused id.
  virtual std::string TokenBytes(int32_t id) const = 0;
  // `messages_json` is a JSON array. INVALID_ARGUMENT with the template's message when it refuses.
  virtual absl::StatusOr<std::string> ApplyChatTemplate(
      std::string_view messages_json, const ChatTemplateOptions& options) const = 0;
  virtual std::unique_ptr<StreamDecoder> NewStreamDecoder(bool skip_special_tokens) const = 0;
  virtual TokenCacheInfo cache_info() const { return {}; }
  // A text of more than n times as many bytes has more than n tokens; 0: that is not known.
  virtual int32_t max_token_bytes() const { return 0; }
};

}  // namespace baton
