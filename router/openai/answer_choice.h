#pragma once

#include <memory>

#include "router/openai/answer_format.h"
#include "router/openai/text_pieces.h"

namespace baton {

// One choice of an answer, or one piece of a streamed one, as it is to be written.
struct AnswerChoice {
  std::shared_ptr<const AnswerContext> context;
  std::shared_ptr<const ChoiceDelta> delta;
  std::shared_ptr<const TokenScores> prompt_scores;  // Null if none were asked for.
  bool chunk = false;                                // Of a stream.
  bool first = true;  // The first piece of the choice: with what is said of its prompt.
};

// Appends the choice's JSON object to `out`, which refers to what is repeated instead of copying
// it.
void AddChoice(const AnswerChoice& choice, TextPieces& out);

}  // namespace baton
