#pragma once

#include "common/checkpoint/families.h"
#include "common/checkpoint/json_fields.h"
#include "common/checkpoint/model_config.h"

namespace baton {

// Reads config.experts: how many experts there are, how many a token goes to, their sizes, how
// they are weighted, and by decoder_sparse_step and mlp_only_layers which layers have them. The
// number of layers and ffn_size have been read.
void ReadExperts(JsonFields& fields, const Family& family, ModelConfig& config);

}  // namespace baton
