#include "common/worker/default_pool.h"

#include <algorithm>

#include "common/kv_cache/layer_groups.h"
#include "common/model/rank_shape.h"

namespace baton {
namespace {

constexpr int64_t kDefaultPoolSequences = 32;

}  // namespace

int64_t EntryBytesOfRanks(const ModelConfig& model, int tp, DType kv_dtype, int32_t block_size) {
  KvLayerGroup shape{.k_dim = model.head_dim, .v_dim = model.head_dim, .dtype = kv_dtype};
  for (int r = 0; r < tp; ++r) shape.num_kv_heads += ShardOf(model, r, tp).kv_heads.count;
  const KvLayout layout = GroupLayers(model.windows, shape, block_size);
  return EntryBytes(layout);
}

int32_t DefaultNumBlocks(int64_t block_bytes, int32_t block_size, int32_t max_model_len,
                         int64_t bytes) {
  const int64_t per_sequence = (int64_t{max_model_len} + block_size - 1) / block_size;
  const int64_t fitting = bytes / std::max<int64_t>(block_bytes, 1);
  const int64_t wanted = std::min(kDefaultPoolSequences * per_sequence, fitting);
  return static_cast<int32_t>(std::clamp<int64_t>(wanted, per_sequence, 1 << 28));
}

}  // namespace baton
