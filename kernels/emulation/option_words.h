#pragma once

#include <string_view>

namespace baton::emulation {

// Of a text like "seed=3 lose=20", `parse(key, value)` for each word. False at the first that has
// no
// '=', or that `parse` does not take.
template <typename Parse>
bool ParseWords(std::string_view text, Parse parse) {
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(word.size() < text.size() ? word.size() + 1 : word.size());
    if (word.empty()) continue;
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) return false;
    if (!parse(word.substr(0, equals), word.substr(equals + 1))) return false;
  }
  return true;
}

}  // namespace baton::emulation
