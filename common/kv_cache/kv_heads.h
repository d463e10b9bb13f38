#pragma once

#include <cstdint>

#include "common/base/check.h"

namespace baton {

// KV heads by their index in the whole model. A tensor-parallel rank holds a part of them.
struct HeadRange {
  int32_t first = 0;
  int32_t count = 0;
  bool operator==(const HeadRange&) const = default;
};

// Those of a rank in a group of `size`, where one of size and kv_heads divides the other: with
// fewer heads than ranks, neighbours hold the same head.
inline HeadRange HeadsOf(int rank, int size, int32_t kv_heads) {
  BATON_CHECK(rank >= 0 && rank < size && kv_heads > 0);
  if (kv_heads % size == 0) return {kv_heads / size * rank, kv_heads / size};
  BATON_CHECK(size % kv_heads == 0);
  return {rank / (size / kv_heads), 1};
}

}  // namespace baton
