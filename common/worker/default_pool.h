#pragma once

#include <cstdint>

#include "common/base/dtype.h"
#include "common/checkpoint/model_config.h"

namespace baton {

// Bytes of one block of each group of layers in the pools of all ranks together, of which several
// may hold the same heads.
int64_t EntryBytesOfRanks(const ModelConfig& model, int tp, DType kv_dtype, int32_t block_size);

// Blocks of a pool of which no size was said: room for some of the longest sequences, within so
// many bytes for all ranks together, but for at least one.
int32_t DefaultNumBlocks(int64_t block_bytes, int32_t block_size, int32_t max_model_len,
                         int64_t bytes);

}  // namespace baton
