#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baton {

// Looks for stop strings in a text that comes in pieces. The result does not depend on how the
// text was cut: the first stop string to be complete wins, of several that end together the
// longest; what may still become one is held back.
class StopMatcher {
 public:
  // Non-empty strings; they must not change while in use.
  explicit StopMatcher(const std::vector<std::string>* stop) : stop_(stop) {}

  struct Result {
    std::string text;                 // Released now: before the stop string, never part of one.
    std::optional<std::string> stop;  // Found: nothing may be added afterwards.
  };
  // Only a stop string that ends within a piece added with `may_stop` counts.
  Result Add(std::string_view piece, bool may_stop);

  // The text is complete: releases what was held back.
  std::string Finish();

 private:
  size_t HoldBack() const;

  const std::vector<std::string>* stop_;
  std::string pending_;  // Text not yet released.
};

}  // namespace baton
