#pragma once

// Which keys a query sees. Internal linkage: also included by files compiled per kernel set.

#include <cstdint>

#include "kernels/api/attention_args.h"

namespace baton {
namespace {

struct KeySpan {
  int64_t begin = 0;
  int64_t end = 0;  // <= begin: none.
};

// Of the query at `position` in a sequence of `num_keys`. Neither end ever falls as position grows.
inline KeySpan VisibleKeys(const ScoreOptions& scores, int64_t position, int64_t num_keys) {
  KeySpan span{0, num_keys};
  if (scores.window_left >= 0 && position - scores.window_left > 0) {
    span.begin = position - scores.window_left;
  }
  int64_t right = scores.window_right;
  if (scores.causal) right = 0;
  if (right >= 0 && position + right + 1 < num_keys) span.end = position + right + 1;
  return span;
}

}  // namespace
}  // namespace baton
