#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

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

// The shape of that name; INVALID_ARGUMENT lists the names.
absl::StatusOr<ModelShape> ShapeOf(const std::string& name);

// A folder in Hugging Face layout below `models_dir`, made there unless it exists: random bf16
// weights of a size at which activations stay finite, always the same ones, and a tokenizer whose
// every token has text, so that servers take the folder. Made whole or not at all.
absl::StatusOr<std::string> MakeRandomModel(const ModelShape& shape, const std::string& models_dir);

// Folders of models, removed in the end unless the user named the folder above them.
class ModelsFolder {
 public:
  // Empty: a folder of its own.
  explicit ModelsFolder(const std::string& kept_dir);
  ~ModelsFolder();
  ModelsFolder(const ModelsFolder&) = delete;
  ModelsFolder& operator=(const ModelsFolder&) = delete;

  const std::string& dir() const { return dir_; }

 private:
  std::string dir_;
  bool keep_;
};

}  // namespace baton::bench
