#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton {

// Sampling defaults of a model: what a request leaves out is taken from here, and what this leaves
// out from OpenAI's (temperature 1, top_p 1, everything else off).
struct SamplingDefaults {
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> repetition_penalty;
  std::optional<int64_t> max_tokens;  // generation_config.json's max_new_tokens.
};

// Reads the fields above from the text of a generation_config.json. An unknown field is ignored, a
// known one of a wrong type or range refused by name. `do_sample: false` sets no temperature:
// the servers that clients know do not look at it either.
absl::StatusOr<SamplingDefaults> ParseSamplingDefaults(std::string_view generation_config_json);

// Reads DIR/generation_config.json; a folder without one has no defaults.
absl::StatusOr<SamplingDefaults> LoadSamplingDefaults(const std::string& model_dir);

// "temperature=1 top_p=1 ...", the effective defaults, to be logged at start.
std::string ToString(const SamplingDefaults& defaults);

}  // namespace baton
