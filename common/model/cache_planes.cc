#include "common/model/cache_planes.h"

namespace baton {

CachePlane PlaneOf(const KvCache& cache, int32_t layer, KvPlane plane) {
  const KvLayerGroup& group = GroupOfLayer(cache.layout(), layer);
  const int32_t dim = plane == KvPlane::kK ? group.k_dim : group.v_dim;
  const int32_t block_size = cache.layout().block_size;
  return {.data = cache.Plane(layer, plane),
          .dtype = group.dtype,
          .num_blocks = cache.num_blocks(),
          .num_heads = group.num_kv_heads,
          .block_size = block_size,
          .dim = dim,
          .block_stride = cache.BlockStride(layer, plane) / SizeOf(group.dtype)};
}

}  // namespace baton
