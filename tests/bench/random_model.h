#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace baton::bench {

// The shape of a Llama model.
struct ModelShape {
  const char* name = "";
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t ffn = 0;
  int64_t vocab = 32000;
};

inline constexpr ModelShape k125M = {"125M", 768, 12, 12, 12, 2048};
inline constexpr ModelShape k1B = {"1B", 2048, 16, 32, 8, 8192};

// Writes a folder in Hugging Face layout with random bf16 weights, of a size at which activations
// stay finite. The folder must exist.
absl::Status WriteRandomModel(const ModelShape& shape, const std::string& dir);

}  // namespace baton::bench
