#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "router/text/text_codec.h"
#include "tests/fuzz/fuzz_input.h"

namespace baton {

// A model folder in memory where there is one, gone with the process.
class FuzzFolder {
 public:
  FuzzFolder() {
    path_ = std::filesystem::exists("/dev/shm") ? "/dev/shm/baton-fuzz-XXXXXX"
                                                : "/tmp/baton-fuzz-XXXXXX";
    BATON_CHECK(::mkdtemp(path_.data()) != nullptr);
  }
  ~FuzzFolder() { std::filesystem::remove_all(path_); }
  FuzzFolder(const FuzzFolder&) = delete;
  FuzzFolder& operator=(const FuzzFolder&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
  }

 private:
  std::string path_;
};

inline std::unique_ptr<TextCodec> LoadTinyKjv() {
  return *TextCodec::Load(BATON_SOURCE_DIR "/deploy/models/tiny-kjv");
}

// tiny-kjv's (ByteLevel), then those of text_goldens.json: byte fallback and others.
inline const std::vector<std::unique_ptr<TextCodec>>& KnownCodecs() {
  static const std::vector<std::unique_ptr<TextCodec>> codecs = [] {
    std::vector<std::unique_ptr<TextCodec>> loaded;
    loaded.push_back(LoadTinyKjv());
    std::ifstream file(BATON_SOURCE_DIR "/tests/golden/text_goldens.json");
    const auto goldens = nlohmann::ordered_json::parse(file);
    for (const auto& kind : goldens["other_tokenizers"]) {
      const FuzzFolder folder;
      folder.Write("tokenizer.json", kind["tokenizer"].dump());
      folder.Write("tokenizer_config.json", kind["config"].dump());
      loaded.push_back(*TextCodec::Load(folder.path()));
    }
    return loaded;
  }();
  return codecs;
}

}  // namespace baton
