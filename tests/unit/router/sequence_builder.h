#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "router/sequence.h"

namespace baton {

// Sequences without a node.
class SequenceBuilder {
 public:
  // Of a request of its own with one prompt.
  SequenceState& New(int32_t priority = 0, int32_t prompt_length = 3) {
    ValidRequest& body = bodies_.emplace_back();
    body.prompts = {std::vector<int32_t>(prompt_length, 7)};
    body.priority = priority;
    SequenceState& sequence = sequences_.emplace_back();
    sequence.body = &body;
    sequence.id = {1, sequences_.size()};
    return sequence;
  }

 private:
  std::deque<ValidRequest> bodies_;
  std::deque<SequenceState> sequences_;
};

}  // namespace baton
