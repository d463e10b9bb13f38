#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace baton::bench {

// The shape of a Llama model, or with experts of a Mixtral.
struct ModelShape {
  const char* name = "";
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t ffn = 0;  // Of each expert.
  int64_t vocab = 32000;
  int64_t experts = 0;  // Of a layer; 0: one MLP.
  int64_t top_k = 0;    // Of them that a token takes.
};

inline constexpr ModelShape k125M = {"125M", 768, 12, 12, 12, 2048};
inline constexpr ModelShape k1B = {"1B", 2048, 16, 32, 8, 8192};
inline constexpr ModelShape k8B = {"8B", 4096, 32, 32, 8, 14336, 128256};
inline constexpr ModelShape kQuick = {"quick", 64, 2, 4, 2, 128, 512};  // That a way works at all.
// 1.3 billion parameters, of which a token reads 0.5.
inline constexpr ModelShape kMoE = {"MoE", 2048, 6, 32, 8, 4096, 32000, 8, 2};

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
