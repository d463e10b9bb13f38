// The header of a weights file. The input is the header's text, a length that lies by a drawn
// amount, and a number of data bytes.
#include <cstring>
#include <string>

#include "common/checkpoint/safetensors.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz_input.h"

namespace baton {
namespace {

using Tensors = std::map<std::string, StoredTensor>;

std::string File(std::string_view header, uint64_t length, std::string_view data) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i));
  return file.append(header).append(data);
}

int BitsOf(const std::string& dtype) {
  if (dtype == "BOOL" || dtype == "U8" || dtype == "I8" || dtype.starts_with("F8_")) return 8;
  if (dtype.starts_with("F6_")) return 6;
  if (dtype == "F4") return 4;
  if (dtype.ends_with("16")) return 16;
  return dtype.ends_with("32") ? 32 : 64;
}

// Each tensor lies within the data, has the bytes of its shape, and all together fill it.
void CheckTensors(const Tensors& tensors, std::string_view data) {
  size_t total = 0;
  for (const auto& [name, tensor] : tensors) {
    __int128 bits = BitsOf(tensor.dtype);
    for (const int64_t extent : tensor.shape) {
      BATON_CHECK(extent >= 0);
      bits *= extent;
    }
    BATON_CHECK(bits == static_cast<__int128>(tensor.bytes.size()) * 8);
    const auto* begin = reinterpret_cast<const char*>(tensor.bytes.data());
    BATON_CHECK(begin >= data.data() && begin + tensor.bytes.size() <= data.data() + data.size());
    total += tensor.bytes.size();
  }
  BATON_CHECK(total == data.size());
}

std::string Print(const Tensors& tensors, std::string_view data) {
  nlohmann::json header = nlohmann::json::object();
  for (const auto& [name, tensor] : tensors) {
    const auto begin = reinterpret_cast<const char*>(tensor.bytes.data()) - data.data();
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {begin, begin + static_cast<int64_t>(tensor.bytes.size())}}};
  }
  const std::string text = header.dump();
  return File(text, text.size(), data);
}

void Run(FuzzInput in) {
  const auto lie = static_cast<int8_t>(in.Byte());
  const std::string data(in.Number(2) % 600, 'x');
  const bool raw = lie == 127;  // The whole file as it is.
  const std::string_view header = in.Rest();
  const std::string file =
      raw ? std::string(header) : File(header, header.size() + static_cast<uint64_t>(int64_t{lie}),
                                       data);
  const auto tensors = ParseSafetensors("f.safetensors", AsBytes(file));
  if (!tensors.ok()) return CheckRefusal(tensors.status());
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const std::string_view stored = std::string_view(file).substr(8 + length);
  CheckTensors(*tensors, stored);
  const std::string printed = Print(*tensors, stored);
  const auto again = ParseSafetensors("f.safetensors", AsBytes(printed));
  BATON_CHECK(again.ok() && again->size() == tensors->size());
  for (const auto& [name, tensor] : *tensors) {
    const StoredTensor& other = again->at(name);
    BATON_CHECK(other.dtype == tensor.dtype && other.shape == tensor.shape);
    BATON_CHECK(other.bytes.size() == tensor.bytes.size());
  }
}

}  // namespace
}  // namespace baton

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::Run({data, size});
  return 0;
}
