#pragma once

#include <cstdint>

#include "common/base/dtype.h"

namespace baton::cuda {

// Operands of which sums of products show how a tensor core adds: how many bits it keeps, how it
// rounds, in which order and how many at a time. As it lies in a device's memory. Bits are those of
// a half type, and the same in every process.
struct HardNumbers {
  static constexpr int kTokens = 64, kWeights = 32, kDepth = 64;
  static constexpr int kDim = 64, kBlockKeys = 32, kBlocks = 2, kKeys = kBlocks * kBlockKeys;
  static constexpr float kScale = 0.693147181f;  // A score is the binary logarithm of its weight.

  explicit HardNumbers(DType dtype);

  // Of one product.
  uint16_t tokens[kTokens][kDepth];
  uint16_t weights[kWeights][kDepth];
  // Of attention: query i has a 1 at column i alone, so that column i of the keys is its scores,
  // which no way of adding changes; and probabilities times values is what is hard.
  uint16_t queries[kTokens][kDim];
  uint16_t keys[kKeys][kDim];
  uint16_t values[kKeys][kDim];
  int32_t query_starts[2];
  int32_t lengths[2];  // One is used.
  int32_t table[kBlocks];
};

}  // namespace baton::cuda
