#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

// One token on its own, as OpenAI's logprobs show it.
struct TokenPiece {
  std::string text;      // Valid UTF-8: `bytes` with U+FFFD for what is none.
  std::string bytes;     // What the token stands for, maybe half a character; empty if unused.
  bool special = false;  // Left out by skip_special_tokens.
};

struct RenderOptions {
  bool add_generation_prompt = true;
  std::string kwargs_json;    // chat_template_kwargs: a JSON object of variables; empty = none.
  std::string chat_template;  // A template, or the name of one of the model's; empty = "default".
  std::optional<int64_t> now_s;  // For strftime_now, seconds since 1970; absent = the clock.
};

// Turns the tokens of one choice into text as they come: the pieces of all calls together are what
// Decode makes of all ids. (One exception: a tokenizer with byte fallback replaces a whole run of
// byte tokens by U+FFFD when one of them is wrong; characters given out before stay.) A piece is
// whole UTF-8 characters; U+FFFD stands for bytes that cannot become one. At most 32 tokens are
// held back. One thread at a time; may outlive its codec.
class IncrementalDecoder {
 public:
  IncrementalDecoder(IncrementalDecoder&&) = default;
  IncrementalDecoder& operator=(IncrementalDecoder&&) = default;

  // The text that became final with this token, often none. OUT_OF_RANGE for an id outside of the
  // vocabulary; the decoder is then as before.
  absl::StatusOr<std::string> Push(int32_t token_id);

  // What is still held, after the last token. The decoder is then as new.
  absl::StatusOr<std::string> Flush();

 private:
  friend class TextCodec;
  struct Free {
    void operator()(void* decoder) const;
  };
  explicit IncrementalDecoder(void* decoder) : decoder_(decoder) {}

  std::unique_ptr<void, Free> decoder_;
};

// Of the tokens of chunks of text (8 KiB) that were encoded lately; a cache of at most 12 MiB.
struct TextCacheInfo {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t bytes = 0;
};

// The tokenizer and the chat templates of one model folder. Const methods may run on many threads
// at once. Time and memory grow with the input about linearly (plan 1 s and 150 MB for 1 MiB of
// text); the caller bounds its size, see max_token_bytes().
class TextCodec {
 public:
  // NOT_FOUND if the folder has no tokenizer.json (then serve token ids only). INVALID_ARGUMENT
  // names the file and its defect.
  static absl::StatusOr<std::unique_ptr<TextCodec>> Load(const std::string& model_dir);

  TextCodec(const TextCodec&) = delete;
  TextCodec& operator=(const TextCodec&) = delete;
  ~TextCodec();

  // `text` must be UTF-8. A special token's text becomes that token, as in transformers.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special_tokens) const;

  // OUT_OF_RANGE names the first id outside of [0, vocab_size()). Unused ids give no text.
  absl::StatusOr<std::string> Decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  absl::StatusOr<TokenPiece> TokenToBytesOrText(int32_t id) const;

  // What transformers' apply_chat_template(tokenize=False) returns. `messages_json` is an array of
  // objects; their null members count as absent. INVALID_ARGUMENT with the template's own message
  // when it refuses the messages, with the limit when it exceeds one, and for a model without a
  // template.
  absl::StatusOr<std::string> ApplyChatTemplate(std::string_view messages_json,
                                                const RenderOptions& options) const;

  IncrementalDecoder NewDecoder(bool skip_special_tokens) const;

  bool has_chat_template() const { return has_chat_template_; }
  // It is known where a text can be cut, so that its parts have the tokens of the whole. Of other
  // tokenizers Encode costs about half as much again, and its cache stays empty.
  bool has_parts() const { return has_parts_; }
  TextCacheInfo cache_info() const;
  // Ids are below it: the tokenizer's, or config.json's if that is larger.
  int32_t vocab_size() const { return vocab_size_; }
  // No token stands for more bytes of text, so a text of more than max_token_bytes() * n bytes has
  // more than n tokens: callers can refuse it before it is encoded. 0 = there is no such bound.
  int32_t max_token_bytes() const { return max_token_bytes_; }
  std::optional<int32_t> bos_id() const { return bos_id_; }
  std::optional<int32_t> eos_id() const { return eos_id_; }

 private:
  explicit TextCodec(const void* codec) : codec_(codec) {}

  const void* const codec_;
  bool has_chat_template_ = false;
  bool has_parts_ = false;
  int32_t vocab_size_ = 0;
  int32_t max_token_bytes_ = 0;
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
};

}  // namespace baton
