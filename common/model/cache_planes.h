#pragma once

#include <cstdint>

#include "common/kv_cache/kv_cache.h"
#include "kernels/api/cache_args.h"

namespace baton {

// One plane of a layer as the operators take it. Borrowed from `cache`.
CachePlane PlaneOf(const KvCache& cache, int32_t layer, KvPlane plane);

}  // namespace baton
