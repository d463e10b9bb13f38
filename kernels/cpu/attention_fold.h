#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/lane_math.h"
#include "kernels/cpu/vec.h"

namespace baton::BATON_KERNEL_SET {

// Adds a partial state to a row's running state: `sum` has v_padded floats, a `weight` of 0 is an
// empty state.
inline void FoldPartial(int64_t v_padded, const float* partial, float partial_max,
                        float partial_weight, float* sum, float& max, float& weight) {
  if (partial_weight == 0) return;
  if (weight == 0) {
    std::memcpy(sum, partial, v_padded * sizeof(float));
    max = partial_max;
    weight = partial_weight;
    return;
  }
  const float top = partial_max > max ? partial_max : max;
  float scales[kLanes] = {max - top, partial_max - top};
  Store(scales, Exp(Load(scales)));
  for (int64_t d = 0; d < v_padded; d += kLanes) {
    const Vec old = Load(sum + d) * Broadcast(scales[0]);
    Store(sum + d, Fma(Load(partial + d), Broadcast(scales[1]), old));
  }
  weight = weight * scales[0] + partial_weight * scales[1];
  max = top;
}

}  // namespace baton::BATON_KERNEL_SET
