#pragma once

#include "kernels/api/model_args.h"
#include "kernels/cuda/floats.h"
#include "kernels/cuda/math.h"

namespace baton::cuda {

// What ActivationAndMul makes of a gate and its up, both rounded as if they had lain in memory.
template <typename T>
BATON_DEVICE T Gated(ActivationKind activation, float gate, float up) {
  const float active = Activate(activation, ToFloat(FromFloat<T>(gate)));
  return FromFloat<T>(active * ToFloat(FromFloat<T>(up)));
}

}  // namespace baton::cuda
