#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// What a model's generation_config.json says; nothing where it is silent. The router applies the
// sampling defaults to requests that do not set the field themselves.
struct GenerationConfig {
  std::vector<int32_t> eos_token_ids;  // Ascending, each once; empty if not given.
  std::optional<int32_t> bos_token_id;
  std::optional<bool> do_sample;
  std::optional<float> temperature;         // >= 0
  std::optional<int32_t> top_k;             // >= 0; 0 = off.
  std::optional<float> top_p;               // (0, 1]
  std::optional<float> min_p;               // [0, 1]
  std::optional<float> repetition_penalty;  // > 0
};

// InvalidArgument names the field and its value. Fields that only concern other programs are
// ignored.
absl::StatusOr<GenerationConfig> ParseGenerationConfig(const std::string& json_text);

// Reads <model_dir>/generation_config.json; an empty GenerationConfig if there is no such file.
absl::StatusOr<GenerationConfig> LoadGenerationConfig(const std::string& model_dir);

}  // namespace baton
