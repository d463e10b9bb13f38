#include "common/kv_cache/kv_layout.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/random.h"

namespace baton {

int32_t NumLayers(const KvLayout& layout) {
  int32_t layers = 0;
  for (const KvLayerGroup& group : layout.groups) layers += group.num_layers;
  return layers;
}

const KvLayerGroup& GroupOfLayer(const KvLayout& layout, int32_t layer) {
  for (const KvLayerGroup& group : layout.groups) {
    if (layer < group.num_layers) return group;
    layer -= group.num_layers;
  }
  BATON_CHECK(false && "layer is not in the layout");
  return layout.groups.front();
}

int64_t HeadBlockBytes(const KvLayout& layout, int32_t layer, KvPlane plane) {
  const KvLayerGroup& group = GroupOfLayer(layout, layer);
  const int64_t dim = plane == KvPlane::kK ? group.k_dim : group.v_dim;
  return dim * layout.block_size * SizeOf(group.dtype);
}

int64_t BlockBytes(const KvLayout& layout) {
  int64_t bytes = 0;
  for (const KvLayerGroup& g : layout.groups) {
    bytes += int64_t{g.num_layers} * g.num_kv_heads * (g.k_dim + g.v_dim) * layout.block_size *
             SizeOf(g.dtype);
  }
  return bytes;
}

int32_t TokensBehindWindow(int32_t window, int32_t num_tokens) {
  if (window == 0) return 0;
  // The query at position num_tokens sees itself and window - 1 of them.
  return std::max(0, num_tokens - std::max(1, window - 1));
}

int32_t TokensBehindWindow(const KvLayout& layout, int32_t num_tokens) {
  int32_t behind = num_tokens;
  for (const KvLayerGroup& group : layout.groups) {
    behind = std::min(behind, TokensBehindWindow(group.window, num_tokens));
  }
  return behind;
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
  }
  return digest;
}

}  // namespace baton
