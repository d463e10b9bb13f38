#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

// True if `text` is well-formed UTF-8 (no surrogates, no overlong forms).
bool IsValidUtf8(std::string_view text);

// `bytes` with each ill-formed part replaced by one U+FFFD.
std::string ToValidUtf8(std::string_view bytes);

// Number of code points of valid UTF-8.
int64_t CodePoints(std::string_view text);

}  // namespace baton
