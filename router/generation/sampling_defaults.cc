#include "router/generation/sampling_defaults.h"

#include "absl/strings/str_format.h"

namespace baton {

std::string EffectiveDefaults(const GenerationConfig& config) {
  return absl::StrFormat("temperature=%g top_p=%g top_k=%d min_p=%g repetition_penalty=%g",
                         config.temperature.value_or(1), config.top_p.value_or(1),
                         config.top_k.value_or(0), config.min_p.value_or(0),
                         config.repetition_penalty.value_or(1));
}

}  // namespace baton
