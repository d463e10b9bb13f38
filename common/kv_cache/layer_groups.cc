#include "common/kv_cache/layer_groups.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton {
namespace {

int32_t CeilDiv(int32_t a, int32_t b) { return (a + b - 1) / b; }

// Layers of a group, where so many see all tokens and so many have a window.
int32_t SlotsOfABlock(int32_t wide, int32_t windowed) {
  int32_t best = 1;
  int32_t least = wide + windowed;
  for (int32_t slots = 2; slots <= std::max(wide, windowed); ++slots) {
    const int32_t wide_groups = CeilDiv(wide, slots);
    const int32_t groups = wide_groups + CeilDiv(windowed, slots);
    const int32_t empty = groups * slots - wide - windowed;
    // A table more costs little, an empty slot beside layers that see all a part of each token.
    const int32_t cost = groups + 2 * (wide_groups * slots - wide);
    if (8 * empty > groups * slots || cost >= least) continue;
    best = slots;
    least = cost;
  }
  return best;
}

}  // namespace

KvLayout GroupLayers(std::span<const int32_t> windows, const KvLayerGroup& shape,
                     int32_t block_size) {
  BATON_CHECK(!windows.empty());
  const auto [narrowest, widest] = std::ranges::minmax(windows);
  const auto num_layers = static_cast<int32_t>(windows.size());
  KvLayout layout{.block_size = block_size};
  if (narrowest == widest) {
    layout.groups = {shape};
    layout.groups[0].num_layers = num_layers;
    layout.groups[0].window = widest;
    return layout;
  }
  BATON_CHECK(narrowest == 0);
  const auto wide = static_cast<int32_t>(std::ranges::count(windows, 0));
  const int32_t slots = SlotsOfABlock(wide, num_layers - wide);
  const int32_t wide_groups = CeilDiv(wide, slots);
  layout.groups.assign(wide_groups + CeilDiv(num_layers - wide, slots), shape);
  int32_t seen[2] = {};  // Layers without a window, and with one.
  for (const int32_t window : windows) {
    BATON_CHECK(window == 0 || window == widest);
    const bool has_window = window != 0;
    const int32_t group = (has_window ? wide_groups : 0) + seen[has_window ? 1 : 0]++ / slots;
    layout.group_of_layer.push_back(group);
    ++layout.groups[group].num_layers;
    layout.groups[group].window = window;
    layout.groups[group].spare = has_window ? kSpareTokens : 0;
  }
  return layout;
}

}  // namespace baton
