#pragma once

#include <vector>

#include "common/checkpoint/families.h"
#include "common/checkpoint/json_fields.h"
#include "common/checkpoint/model_config.h"

namespace baton {

// Reads sliding_window, use_sliding_window, max_window_layers, layer_types and what the family
// calls its pattern into config.windows: what transformers makes of the fields, and an error where
// it would ignore one that matters. The number of layers and max_model_len have been read.
//
// Returns of each layer whether it is one of those with a window, even one that is too long to
// hide a key.
std::vector<bool> ReadWindows(JsonFields& fields, const Family& family, bool window_absent,
                              ModelConfig& config);

}  // namespace baton
