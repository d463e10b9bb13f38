#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/generation_config.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/weights.h"

namespace baton {

// A model folder in Hugging Face layout, opened and checked. Owns the file mappings that `weights`
// points into; a runner may drop it once it has packed its own copy.
struct ModelFiles {
  ModelConfig config;
  GenerationConfig generation;
  SafetensorsFiles files;
  ModelWeights weights;
  std::vector<int32_t> eos_token_ids;  // Of generation_config.json, else of config.json; ascending.
  uint64_t model_digest = 0;           // Config, tensor table and weight bytes.
};

struct LoadOptions {
  int num_threads = 1;  // Of the weights' digest, >= 1.
  int nice = 0;         // Added to the niceness of all but the caller.
};

// Reads config.json, generation_config.json and the weights of `model_dir`. The error names the
// file and the defect.
absl::StatusOr<ModelFiles> LoadModelFiles(const std::string& model_dir,
                                          const LoadOptions& options = {});

// `status` of loading the folder that --model names, as its user is told.
absl::Status AtModelOption(const std::string& model_dir, const absl::Status& status);

}  // namespace baton
