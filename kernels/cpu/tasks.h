#pragma once

#include <cstdint>

namespace baton {

// Below this many elements or products waking the pool costs more than it saves.
inline constexpr int64_t kInlineElements = 1 << 13;
inline constexpr int64_t kInlineProducts = 1 << 19;

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace baton
