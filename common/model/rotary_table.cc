#include "common/model/rotary_table.h"

#include "common/base/check.h"
#include "common/model/portable_math.h"

namespace baton {

void FillRotaryTable(const RopeFrequencies& frequencies, std::span<const int32_t> positions,
                     std::span<float> cos, std::span<float> sin) {
  const size_t half = frequencies.inv_freq.size();
  BATON_CHECK(cos.size() == positions.size() * half && sin.size() == cos.size());
  size_t at = 0;
  for (const int32_t position : positions) {
    for (const float inv_freq : frequencies.inv_freq) {
      const float angle = static_cast<float>(position) * inv_freq;
      const SinCos value = PortableSinCos(angle);
      cos[at] = static_cast<float>(value.cos) * frequencies.attention_scaling;
      sin[at] = static_cast<float>(value.sin) * frequencies.attention_scaling;
      ++at;
    }
  }
}

}  // namespace baton
