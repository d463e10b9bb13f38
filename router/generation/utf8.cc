#include "router/generation/utf8.h"

namespace baton {
namespace {

struct Range {
  unsigned char low;
  unsigned char high;
};

// Length of the well-formed sequence at the start of `text` (not empty); 0 if there is none, and
// then `bad` is the length of the part to replace (Unicode 15, table 3-7, maximal subparts).
size_t Sequence(std::string_view text, size_t* bad) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  *bad = 1;
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  Range second{0x80, 0xBF};
  if (first == 0xE0) second.low = 0xA0;
  if (first == 0xED) second.high = 0x9F;
  if (first == 0xF0) second.low = 0x90;
  if (first == 0xF4) second.high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    const Range range = i == 1 ? second : Range{0x80, 0xBF};
    if (i >= text.size() || byte(i) < range.low || byte(i) > range.high) {
      *bad = i;
      return 0;
    }
  }
  return length;
}

}  // namespace

bool IsValidUtf8(std::string_view text) {
  size_t bad = 0;
  while (!text.empty()) {
    const size_t length = Sequence(text, &bad);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string ToValidUtf8(std::string_view bytes) {
  std::string result;
  result.reserve(bytes.size());
  while (!bytes.empty()) {
    size_t bad = 0;
    const size_t length = Sequence(bytes, &bad);
    if (length > 0) {
      result.append(bytes.substr(0, length));
      bytes.remove_prefix(length);
    } else {
      result.append("\xEF\xBF\xBD");
      bytes.remove_prefix(bad);
    }
  }
  return result;
}

int64_t CodePoints(std::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

}  // namespace baton
