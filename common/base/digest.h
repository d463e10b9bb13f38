#pragma once

#include <cstdint>
#include <span>

namespace baton {

// XXH3-64 of the token ids: what both sides of a handoff compare.
uint64_t TokensDigest(std::span<const int32_t> tokens);

}  // namespace baton
