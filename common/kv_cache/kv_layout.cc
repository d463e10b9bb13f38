#include "common/kv_cache/kv_layout.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/random.h"

namespace baton {
namespace {

int64_t HeadBytes(const KvLayout& layout, const KvLayerGroup& group, KvPlane plane) {
  const int64_t dim = plane == KvPlane::kK ? group.k_dim : group.v_dim;
  return dim * layout.block_size * SizeOf(group.dtype);
}

}  // namespace

int32_t NumLayers(const KvLayout& layout) {
  int32_t layers = 0;
  for (const KvLayerGroup& group : layout.groups) layers += group.num_layers;
  return layers;
}

LayerPlace PlaceOf(const KvLayout& layout, int32_t layer) {
  BATON_CHECK(layer >= 0 && layer < NumLayers(layout) && "layer is not in the layout");
  if (!layout.group_of_layer.empty()) {
    const auto end = layout.group_of_layer.begin() + layer;
    return {*end, static_cast<int32_t>(std::count(layout.group_of_layer.begin(), end, *end))};
  }
  LayerPlace place{.slot = layer};
  while (place.slot >= layout.groups[place.group].num_layers) {
    place.slot -= layout.groups[place.group++].num_layers;
  }
  return place;
}

const KvLayerGroup& GroupOfLayer(const KvLayout& layout, int32_t layer) {
  return layout.groups[PlaceOf(layout, layer).group];
}

int32_t NumSlots(const KvLayout& layout) {
  int32_t slots = 0;
  for (const KvLayerGroup& group : layout.groups) slots = std::max(slots, group.num_layers);
  return slots;
}

int64_t SlotBytes(const KvLayout& layout, int32_t slot, KvPlane plane) {
  int64_t bytes = 0;
  for (const KvLayerGroup& group : layout.groups) {
    if (slot >= group.num_layers) continue;
    bytes = std::max(bytes, group.num_kv_heads * HeadBytes(layout, group, plane));
  }
  return bytes;
}

int64_t HeadBlockBytes(const KvLayout& layout, int32_t layer, KvPlane plane) {
  return HeadBytes(layout, GroupOfLayer(layout, layer), plane);
}

int64_t BlockBytes(const KvLayout& layout) {
  int64_t bytes = 0;
  for (int32_t slot = 0; slot < NumSlots(layout); ++slot) {
    bytes += SlotBytes(layout, slot, KvPlane::kK) + SlotBytes(layout, slot, KvPlane::kV);
  }
  return bytes;
}

int32_t TokensBehindWindow(int32_t window, int32_t num_tokens) {
  if (window == 0) return 0;
  // The query at position num_tokens sees itself and window - 1 of them.
  return std::max(0, num_tokens - std::max(1, window - 1));
}

int64_t EntryBytes(const KvLayout& layout) { return BlockBytes(layout) * NumGroups(layout); }

std::vector<KvWindow> WindowsOf(const KvLayout& layout) {
  std::vector<KvWindow> windows;
  for (const KvLayerGroup& group : layout.groups) windows.push_back({group.window, group.spare});
  return windows;
}

int32_t TokensLeftOut(const KvWindow& window, int32_t num_tokens) {
  return std::max(0, TokensBehindWindow(window.tokens, num_tokens) - window.spare);
}

int32_t TokensLeftOut(const KvLayerGroup& group, int32_t num_tokens) {
  return TokensLeftOut(KvWindow{group.window, group.spare}, num_tokens);
}

int32_t TokensLeftOut(const KvLayout& layout, int32_t num_tokens) {
  int32_t left_out = num_tokens;
  for (const KvLayerGroup& group : layout.groups) {
    left_out = std::min(left_out, TokensLeftOut(group, num_tokens));
  }
  return left_out;
}

bool AnyLeavesTokensOut(const KvLayout& layout, int32_t num_tokens) {
  return std::ranges::any_of(layout.groups, [num_tokens](const KvLayerGroup& group) {
    return TokensLeftOut(group, num_tokens) > 0;
  });
}

uint64_t LayoutDigest(const KvLayout& layout) {
  uint64_t digest = 0x6B76;
  auto add = [&digest](uint64_t value) { digest = Random::Mix(digest * 31 + value + 1); };
  for (const KvLayerGroup& g : layout.groups) {
    add(g.num_layers);
    add(g.num_kv_heads);
    add(g.k_dim);
    add(g.v_dim);
    add(static_cast<uint64_t>(g.dtype));
    add(g.window);
    if (layout.groups.size() > 1) add(g.spare);
  }
  for (const int32_t group : layout.group_of_layer) add(group);
  return digest;
}

}  // namespace baton
