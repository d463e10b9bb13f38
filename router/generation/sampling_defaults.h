#pragma once

#include <string>

#include "common/checkpoint/generation_config.h"

namespace baton {

// "temperature=1 top_p=1 ...": what a request gets that sets nothing, to be logged at start. The
// order is: the request, generation_config.json, OpenAI's defaults. do_sample is not looked at,
// as in other servers: only temperature 0 is greedy.
std::string EffectiveDefaults(const GenerationConfig& config);

}  // namespace baton
