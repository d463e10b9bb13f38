#include "router/generation/choice_text.h"

#include "common/base/status.h"
#include "router/generation/utf8.h"

namespace baton {

absl::StatusOr<ChoiceText::Piece> ChoiceText::Push(int32_t token, bool hidden, bool last) {
  ++tokens_;
  if (decoder_ == nullptr) return Piece{};
  std::string text;
  if (!hidden) {
    ASSIGN_OR_RETURN(text, decoder_->Push(token));
  }
  if (last) {
    ASSIGN_OR_RETURN(const std::string rest, decoder_->Flush());
    text += rest;
  }
  length_ += CodePoints(text);
  StopMatcher::Result found = matcher_.Add(text, /*may_stop=*/tokens_ > min_tokens_);
  Piece piece{std::move(found.text), std::move(found.stop)};
  if (last && !piece.stop.has_value()) piece.text += matcher_.Finish();
  return piece;
}

}  // namespace baton
