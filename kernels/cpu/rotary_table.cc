#include "kernels/cpu/rotary_table.h"

#include "kernels/api/portable_math.h"

namespace baton {

void FillRotaryTable(const RotaryTableArgs& args, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    const auto position = static_cast<float>(args.positions[t]);
    for (int64_t i = 0; i < args.half; ++i) {
      const float angle = position * args.inv_freq[i];
      const SinCos value = PortableSinCos(angle);
      args.cos[t * args.half + i] = static_cast<float>(value.cos) * args.attention_scaling;
      args.sin[t * args.half + i] = static_cast<float>(value.sin) * args.attention_scaling;
    }
  }
}

}  // namespace baton
