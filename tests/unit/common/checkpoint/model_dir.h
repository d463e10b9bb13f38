#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace baton {

// A temporary folder to write the files of a model into; removed with the object.
class ModelDir {
 public:
  ModelDir() {
    std::string pattern = std::filesystem::temp_directory_path() / "baton_model_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~ModelDir() { std::filesystem::remove_all(path_); }
  ModelDir(const ModelDir&) = delete;
  ModelDir& operator=(const ModelDir&) = delete;

  void Write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(path_ + "/" + name).parent_path());
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
  }
  void CopyFrom(const std::string& folder) const {
    std::filesystem::copy(folder, path_,
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
  }
  std::string Read(const std::string& name) const {
    std::ifstream in(path_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// 8 bytes of length, `header`, `data`.
inline std::string SafetensorsBytes(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i)));
  return bytes + header + data;
}

struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// A well-formed safetensors file.
inline std::string SafetensorsBytes(const std::vector<TestTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const TestTensor& t : tensors) {
    header[t.name] = {{"dtype", t.dtype},
                      {"shape", t.shape},
                      {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  return SafetensorsBytes(header.dump(), data);
}

}  // namespace baton
