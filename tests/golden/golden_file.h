#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace baton {

// One prompt of a golden file; README.md has the meaning of the fields.
struct GoldenCase {
  std::string name;
  std::vector<int32_t> prompt_ids;
  std::vector<float> prompt_logprobs;  // [prompt_ids.size() - 1]
  std::vector<int32_t> greedy_ids;
  std::vector<float> greedy_logprobs;
  std::vector<float> greedy_margins;
  double bf16_rms = 0;
};

struct GoldenFile {
  std::vector<GoldenCase> cases;
  double bf16_rms = 0;
};

// Reads a committed JSON file; `path` is relative to tests/golden. Throws if it is not there.
inline nlohmann::json ReadGoldenJson(const std::string& path) {
  std::ifstream in(std::string(BATON_SOURCE_DIR) + "/tests/golden/" + path);
  return nlohmann::json::parse(in);
}

inline GoldenFile ReadGoldenFile(const std::string& path) {
  const nlohmann::json file = ReadGoldenJson(path);
  GoldenFile golden{.bf16_rms = file.at("bf16_rms")};
  for (const auto& c : file.at("cases")) {
    golden.cases.push_back({.name = c.at("name"),
                            .prompt_ids = c.at("prompt_ids"),
                            .prompt_logprobs = c.at("prompt_logprobs"),
                            .greedy_ids = c.at("greedy_ids"),
                            .greedy_logprobs = c.at("greedy_logprobs"),
                            .greedy_margins = c.at("greedy_margins"),
                            .bf16_rms = c.at("bf16_rms")});
  }
  return golden;
}

// The random models under tests/golden/models.
inline std::vector<std::string> GoldenModels() {
  return {
      "bloom",
      "bloom-normed-residual",
      "gemma2",
      "gemma2-wide-heads",
      "gemma3",
      "gemma3-linear-shards",
      "llama-dynamic",
      "llama-llama3-rope",
      "llama-mqa-bias",
      "mistral-linear-shards",
      "mistral-window",
      "mixtral",
      "mixtral-window-shards",
      "neox",
      "neox-odd-rotary",
      "neox-sequential-shards",
      "opt",
      "opt-no-final-norm",
      "opt-odd-heads",
      "opt-post-norm",
      "phi3-longrope-crossing",
      "phi3-longrope-shards",
      "phi3-partial",
      "phi3-window",
      "qwen2-moe",
      "qwen2-moe-window-shards",
      "qwen2-window-layers",
      "qwen2-yarn",
      "qwen2-yarn-untruncated",
      "qwen3",
      "qwen3-bias-shards",
      "qwen3-moe",
      "qwen3-moe-plain",
  };
}

inline std::string GoldenModelDir(const std::string& name) {
  return std::string(BATON_SOURCE_DIR) + "/tests/golden/models/" + name;
}

}  // namespace baton
