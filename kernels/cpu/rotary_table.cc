#include "kernels/cpu/rotary_table.h"

#include "kernels/api/portable_math.h"

namespace baton {

void FillRotaryTable(const RotaryTableArgs& args, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const bool other = args.positions[t] < 0;
    const float* const inv_freq = other ? args.other_inv_freq : args.inv_freq;
    const auto position =
        static_cast<float>(other ? OtherRotation(args.positions[t]) : args.positions[t]);
    for (int64_t i = 0; i < args.half; ++i) {
      const float angle = position * inv_freq[i];
      const SinCos value = PortableSinCos(angle);
      args.cos[t * args.half + i] = static_cast<float>(value.cos) * args.attention_scaling;
      args.sin[t * args.half + i] = static_cast<float>(value.sin) * args.attention_scaling;
    }
  }
}

}  // namespace baton
