#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "router/generation/stop_matcher.h"
#include "router/generation/tokenizer.h"

namespace baton {

// The text of one choice, token by token: whole UTF-8 sequences, stop strings found and removed.
// One thread at a time.
class ChoiceText {
 public:
  // `decoder` is null without a tokenizer: all text is empty. `stop` must outlive this. Stop
  // strings that are complete before `min_tokens` tokens came do not count.
  ChoiceText(std::unique_ptr<StreamDecoder> decoder, const std::vector<std::string>* stop,
             int32_t min_tokens)
      : decoder_(std::move(decoder)), matcher_(stop), min_tokens_(min_tokens) {}

  struct Piece {
    std::string text;
    std::optional<std::string> stop;  // Found: the choice is over.
  };
  // `last` also releases all that was held back; with `hidden` (an end token) the token counts
  // but has no text of its own.
  absl::StatusOr<Piece> Push(int32_t token, bool hidden, bool last);

  // Code points of the text so far, held back or not.
  int64_t length() const { return length_; }

 private:
  std::unique_ptr<StreamDecoder> decoder_;
  StopMatcher matcher_;
  const int32_t min_tokens_;
  int32_t tokens_ = 0;
  int64_t length_ = 0;
};

}  // namespace baton
