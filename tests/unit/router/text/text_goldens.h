#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "router/text/text_codec.h"

namespace baton {

inline constexpr char kTinyKjv[] = BATON_SOURCE_DIR "/deploy/models/tiny-kjv";

// What transformers does, see tests/golden/make_text_goldens.py. Members keep their order.
inline const nlohmann::ordered_json& TextGoldens() {
  static const nlohmann::ordered_json goldens = [] {
    std::ifstream file(BATON_SOURCE_DIR "/tests/golden/text_goldens.json");
    return nlohmann::ordered_json::parse(file);
  }();
  return goldens;
}

inline std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A model folder that goes away with the test.
class TempModelDir {
 public:
  TempModelDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "baton-text-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  TempModelDir(const TempModelDir&) = delete;
  TempModelDir& operator=(const TempModelDir&) = delete;
  ~TempModelDir() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }

  void Write(const std::string& name, std::string_view content) const {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
  }

  // tiny-kjv's tokenizer and this tokenizer_config.json.
  void WriteTinyKjv(std::string_view config) const {
    Write("tokenizer.json", ReadWholeFile(std::string(kTinyKjv) + "/tokenizer.json"));
    Write("tokenizer_config.json", config);
  }

 private:
  std::string path_;
};

inline std::unique_ptr<TextCodec> LoadOrFail(const std::string& path) {
  auto codec = TextCodec::Load(path);
  if (!codec.ok()) {
    ADD_FAILURE() << codec.status();
    return nullptr;
  }
  return *std::move(codec);
}

}  // namespace baton
