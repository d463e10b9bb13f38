#include "common/base/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace baton {

uint64_t TokensDigest(std::span<const int32_t> tokens) {
  return XXH3_64bits(tokens.data(), tokens.size_bytes());
}

}  // namespace baton
