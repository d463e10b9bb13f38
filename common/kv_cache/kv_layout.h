#pragma once

#include <cstdint>
#include <vector>

#include "common/base/dtype.h"

namespace baton {

using BlockId = int32_t;

// Layers whose K and V have one shape and share one block table.
struct KvLayerGroup {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t k_dim = 0;  // Elements of one head of K per token.
  int32_t v_dim = 0;  // Elements of one head of V per token.
  DType dtype = DType::kF32;
  // Tokens that a query sees, itself and those before it; 0 = all, or not the same in all layers.
  int32_t window = 0;
  bool operator==(const KvLayerGroup&) const = default;
};

// How a sequence's K and V lie in blocks. K and V are planes apart, per layer
// [num_blocks, num_kv_heads, block_size, dim] (HND): a range of heads of one block is contiguous.
// One group now; a window per layer, shared and latent KV need more.
struct KvLayout {
  int32_t block_size = 16;  // Tokens per block.
  std::vector<KvLayerGroup> groups;
  bool operator==(const KvLayout&) const = default;
};

enum class KvPlane : uint8_t { kK = 0, kV = 1 };

// Total layers over all groups, and the group and index within it of a layer.
int32_t NumLayers(const KvLayout& layout);
const KvLayerGroup& GroupOfLayer(const KvLayout& layout, int32_t layer);

// Bytes of one head of one block in one plane, and of one whole block over all layers and planes.
int64_t HeadBlockBytes(const KvLayout& layout, int32_t layer, KvPlane plane);
int64_t BlockBytes(const KvLayout& layout);

// Of `num_tokens` computed tokens, the leading ones that no later query sees: their blocks may go,
// and a handoff leaves them out. Never all; 0 without a window, in any group of a layout.
int32_t TokensBehindWindow(int32_t window, int32_t num_tokens);
int32_t TokensBehindWindow(const KvLayout& layout, int32_t num_tokens);

// What two workers must agree on to exchange KV: everything but block_size, which
// transfer_plan.h bridges.
uint64_t LayoutDigest(const KvLayout& layout);

}  // namespace baton
