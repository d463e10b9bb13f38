#pragma once

#include <cstdint>
#include <span>

#include "common/kv_cache/kv_layout.h"

namespace baton {

// What is kept beyond the window of layers beside others that see all. Of blocks of up to 32 tokens
// these make those before a prompt's end whole, so that its further choices find them.
inline constexpr int32_t kSpareTokens = 64;

// The layout of layers that differ in their windows alone. `windows` [num_layers] as in
// KvLayerGroup: none, or one for all that have any; `shape` has the rest of a group. Layers of one
// window are cut into groups of at most as many as a block has slots: few groups, at most an eighth
// of all slots empty, and hardly any beside layers that see all, whose blocks never come back.
KvLayout GroupLayers(std::span<const int32_t> windows, const KvLayerGroup& shape,
                     int32_t block_size);

}  // namespace baton
