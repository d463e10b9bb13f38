#pragma once

#include <cstdint>
#include <vector>

#include "common/base/dtype.h"

namespace baton {

using BlockId = int32_t;

// Layers whose K and V have one shape and one window: a row of a sequence's block table.
struct KvLayerGroup {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t k_dim = 0;  // Elements of one head of K per token.
  int32_t v_dim = 0;  // Elements of one head of V per token.
  DType dtype = DType::kF32;
  int32_t window = 0;  // Tokens that a query sees, itself and those before it; 0 = all.
  // Tokens that are kept and handed over beyond the window, so that the whole blocks before a
  // prompt's end are complete and can be found by prefix.
  int32_t spare = 0;
  bool operator==(const KvLayerGroup&) const = default;
};

// How a sequence's K and V lie in blocks. A block has a slot for each layer of the largest group
// and serves any group: the layers of a group take its slots in their order. K and V are planes
// apart, per slot [num_blocks, num_kv_heads, block_size, dim] (HND): a range of heads of one block
// is contiguous.
struct KvLayout {
  int32_t block_size = 16;           // Tokens per block.
  std::vector<KvLayerGroup> groups;  // Who sees most tokens comes first.
  // [num_layers]: the group of each layer. Empty: a group has the layers behind those of the one
  // before it.
  std::vector<int32_t> group_of_layer;
  bool operator==(const KvLayout&) const = default;
};

enum class KvPlane : uint8_t { kK = 0, kV = 1 };

// Total layers over all groups, and the place of a layer.
int32_t NumLayers(const KvLayout& layout);
struct LayerPlace {
  int32_t group = 0;
  int32_t slot = 0;  // The layer's index in its group.
  bool operator==(const LayerPlace&) const = default;
};
LayerPlace PlaceOf(const KvLayout& layout, int32_t layer);
const KvLayerGroup& GroupOfLayer(const KvLayout& layout, int32_t layer);

inline int32_t NumGroups(const KvLayout& layout) {
  return static_cast<int32_t>(layout.groups.size());
}

// Slots of a block, and what K or V takes of a block in each: as much as the largest head count and
// head of the groups need.
int32_t NumSlots(const KvLayout& layout);
int64_t SlotBytes(const KvLayout& layout, int32_t slot, KvPlane plane);

// Bytes of one head of one block in one plane, of one block over all slots and planes, and of a
// block for each group.
int64_t HeadBlockBytes(const KvLayout& layout, int32_t layer, KvPlane plane);
int64_t BlockBytes(const KvLayout& layout);
int64_t EntryBytes(const KvLayout& layout);

// Of `num_tokens` computed tokens, the leading ones that no later query sees. Never all; 0 without
// a window.
int32_t TokensBehindWindow(int32_t window, int32_t num_tokens);

// What a group's later queries see of a sequence, and what is kept beside that; as in KvLayerGroup.
struct KvWindow {
  int32_t tokens = 0;
  int32_t spare = 0;
};
std::vector<KvWindow> WindowsOf(const KvLayout& layout);

// The tokens behind a window less the spare ones: their blocks may go, and a handoff leaves them
// out. Of a layout: those that are left out in each group.
int32_t TokensLeftOut(const KvWindow& window, int32_t num_tokens);
int32_t TokensLeftOut(const KvLayerGroup& group, int32_t num_tokens);
int32_t TokensLeftOut(const KvLayout& layout, int32_t num_tokens);

// Whether any group leaves tokens out.
bool AnyLeavesTokensOut(const KvLayout& layout, int32_t num_tokens);

// What two workers must agree on to exchange KV: everything but block_size, which
// transfer_plan.h bridges.
uint64_t LayoutDigest(const KvLayout& layout);

}  // namespace baton
