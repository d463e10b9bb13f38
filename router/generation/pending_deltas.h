#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "router/generation/generation_request.h"

namespace baton {

// What a streamed answer has not written yet. Tokens that wait for a slow reader lie together,
// choice by choice, and leave in pieces of bounded size. One thread at a time.
class PendingDeltas {
 public:
  // Of one piece; log probabilities count with their alternatives. A piece has one token at least.
  static constexpr size_t kMaxTokens = 256;
  static constexpr size_t kMaxScores = 512;

  explicit PendingDeltas(size_t num_choices) : choices_(num_choices) {}

  void Append(ChoiceDelta delta);
  bool empty() const { return order_.empty(); }
  // More of the choice that has waited longest. Its finish comes with its last piece.
  ChoiceDelta Take();

 private:
  struct Pending {
    ChoiceDelta delta;
    std::vector<size_t> text_ends;  // By token: of its text within delta.text.
    size_t taken = 0;               // Tokens that have left and are still here.
    bool waits = false;             // It is in order_.
  };

  static size_t PieceEnd(const Pending& pending);
  static ChoiceDelta Slice(const Pending& pending, size_t end);
  static void Forget(Pending& pending);

  std::vector<Pending> choices_;
  std::deque<size_t> order_;
};

}  // namespace baton
