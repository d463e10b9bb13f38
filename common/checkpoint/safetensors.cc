#include "common/checkpoint/safetensors.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/mapped_pages.h"
#include "common/base/status.h"
#include "common/base/this_thread.h"
#include "common/checkpoint/json_fields.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 16 << 20;
constexpr int kMaxHeaderDepth = 8;
constexpr size_t kMaxRank = 16;
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kMaxShards = 4096;
constexpr size_t kDigestPiece = 16 << 20;

struct StoredType {
  std::string_view name;
  uint64_t bits;
};
constexpr StoredType kStoredTypes[] = {
    {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8},    {"U8", 8},
    {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"I16", 16},
    {"U16", 16}, {"F16", 16},    {"BF16", 16},   {"I32", 32},    {"U32", 32},
    {"F32", 32}, {"I64", 64},    {"U64", 64},    {"F64", 64},    {"C64", 64}};

std::optional<uint64_t> BitsOf(std::string_view dtype) {
  for (const StoredType& type : kStoredTypes) {
    if (type.name == dtype) return type.bits;
  }
  return std::nullopt;
}

// Where a tensor lies in the file's data section.
struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
  const std::string* name = nullptr;
};

// Messages of one file; every defect of a tensor is told the same way.
struct Place {
  const std::string& file;

  absl::Status Defect(const std::string& defect) const {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", defect));
  }
  absl::Status Defect(const std::string& tensor, const std::string& defect) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": tensor ", ShowJson(tensor, 200), ": ", defect));
  }
};

// product(shape) * bits / 8, or nothing if it overflows or is not whole.
std::optional<uint64_t> ByteLength(const std::vector<int64_t>& shape, uint64_t bits) {
  uint64_t total = bits;
  for (int64_t extent : shape) {
    if (__builtin_mul_overflow(total, static_cast<uint64_t>(extent), &total)) return std::nullopt;
  }
  if (total % 8 != 0) return std::nullopt;
  return total / 8;
}

absl::StatusOr<std::vector<int64_t>> ReadShape(const Place& place, const std::string& name,
                                               const json& entry) {
  const auto it = entry.find("shape");
  if (it == entry.end() || !it->is_array()) return place.Defect(name, "shape is not a list");
  if (it->size() > kMaxRank) {
    return place.Defect(name, absl::StrCat("shape has ", it->size(), " dimensions; at most ",
                                           kMaxRank, " are allowed"));
  }
  std::vector<int64_t> shape;
  for (const json& extent : *it) {
    const bool valid = extent.is_number_unsigned() && extent.get<uint64_t>() <= INT64_MAX;
    if (!valid) {
      return place.Defect(name, absl::StrCat("shape ", ShowJson(*it),
                                             " has a dimension that is not a whole number"));
    }
    shape.push_back(extent.get<int64_t>());
  }
  return shape;
}

absl::StatusOr<Extent> ReadExtent(const Place& place, const std::string& name, const json& entry,
                                  uint64_t data_size) {
  const auto it = entry.find("data_offsets");
  const bool two_numbers = it != entry.end() && it->is_array() && it->size() == 2 &&
                           (*it)[0].is_number_unsigned() && (*it)[1].is_number_unsigned();
  if (!two_numbers) return place.Defect(name, "data_offsets is not a list of two whole numbers");
  const Extent extent{.begin = (*it)[0].get<uint64_t>(), .end = (*it)[1].get<uint64_t>()};
  if (extent.begin > extent.end) {
    return place.Defect(name,
                        absl::StrCat("data_offsets ", ShowJson(*it), " begin after their end"));
  }
  if (extent.end > data_size) {
    return place.Defect(name, absl::StrCat("data_offsets ", ShowJson(*it), " end beyond the ",
                                           data_size, " bytes of data in the file"));
  }
  return extent;
}

absl::Status CheckMetadata(const Place& place, const json& metadata) {
  if (!metadata.is_object()) return place.Defect("__metadata__ is not an object of strings");
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) return place.Defect("__metadata__ is not an object of strings");
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredTensor> ReadTensor(const Place& place, const std::string& name,
                                        const json& entry, std::span<const std::byte> data) {
  if (!entry.is_object() || entry.size() != 3) {
    return place.Defect(name, "its entry is not {dtype, shape, data_offsets}");
  }
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) {
    return place.Defect(name, "dtype is not a string");
  }
  StoredTensor tensor{.dtype = dtype->get<std::string>(), .file = place.file};
  const std::optional<uint64_t> bits = BitsOf(tensor.dtype);
  if (!bits.has_value()) {
    return place.Defect(name, absl::StrCat("dtype ", ShowJson(*dtype), " is not known"));
  }
  ASSIGN_OR_RETURN(tensor.shape, ReadShape(place, name, entry));
  ASSIGN_OR_RETURN(const Extent extent, ReadExtent(place, name, entry, data.size()));
  const std::optional<uint64_t> length = ByteLength(tensor.shape, *bits);
  if (length != extent.end - extent.begin) {
    return place.Defect(
        name, absl::StrCat("data_offsets hold ", extent.end - extent.begin, " bytes, but shape ",
                           ShowJson(entry["shape"]), " of ", tensor.dtype, " needs ",
                           length.has_value() ? absl::StrCat(*length) : "an impossible number"));
  }
  tensor.bytes = data.subspan(extent.begin, extent.end - extent.begin);
  return tensor;
}

// The tensors must fill the data section in a row.
absl::Status CheckTiling(const Place& place, const std::map<std::string, StoredTensor>& tensors,
                         std::span<const std::byte> data) {
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : tensors) {
    const auto begin = static_cast<uint64_t>(tensor.bytes.data() - data.data());
    extents.push_back({begin, begin + tensor.bytes.size(), &name});
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != covered) {
      return place.Defect(
          *extent.name,
          absl::StrCat("begins at byte ", extent.begin, " of the data, ",
                       extent.begin < covered ? "inside another tensor" : "after a hole", ": ",
                       covered, " was due"));
    }
    covered = extent.end;
  }
  if (covered != data.size()) {
    return place.Defect(
        absl::StrCat("has ", data.size(), " bytes of data, but its tensors end at ", covered));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::map<std::string, StoredTensor>> ParseSafetensors(
    const std::string& file, std::span<const std::byte> contents) {
  const Place place{file};
  if (contents.size() < kLengthBytes) {
    return place.Defect(absl::StrCat("has ", contents.size(),
                                     " bytes; a safetensors file begins with 8 bytes of length"));
  }
  uint64_t header_size = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    header_size |= static_cast<uint64_t>(contents[i]) << (8 * i);
  }
  const std::span<const std::byte> rest = contents.subspan(kLengthBytes);
  if (header_size > kMaxHeaderBytes) {
    return place.Defect(absl::StrCat("header of ", header_size, " bytes; at most ", kMaxHeaderBytes,
                                     " are allowed"));
  }
  if (header_size > rest.size()) {
    return place.Defect(absl::StrCat("truncated: header of ", header_size, " bytes, but only ",
                                     rest.size(), " follow"));
  }
  const std::string_view header(reinterpret_cast<const char*>(rest.data()), header_size);
  const std::span<const std::byte> data = rest.subspan(header_size);
  ASSIGN_OR_RETURN(const json table,
                   ParseBoundedJson(absl::StrCat(file, ": header"), header, kMaxHeaderDepth));
  if (!table.is_object()) return place.Defect("header is not an object");

  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, entry] : table.items()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(CheckMetadata(place, entry));
      continue;
    }
    ASSIGN_OR_RETURN(tensors[name], ReadTensor(place, name, entry, data));
  }
  RETURN_IF_ERROR(CheckTiling(place, tensors, data));
  return tensors;
}

namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

// A name that stays under the model folder and is a weights file.
bool IsSafeShardName(const std::string& name) {
  if (name.empty() || name.front() == '/' || name.find('\0') != std::string::npos) return false;
  if (name.find('\\') != std::string::npos || !absl::EndsWith(name, ".safetensors")) return false;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(name, '/'))) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

// tensor name -> shard name.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& model_dir) {
  const Place place{kIndexFile};
  ASSIGN_OR_RETURN(const std::string text,
                   ReadSmallFile(absl::StrCat(model_dir, "/", kIndexFile), kMaxIndexBytes));
  ASSIGN_OR_RETURN(const json index, ParseBoundedJson(kIndexFile, text, kMaxHeaderDepth));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object()) {
    return place.Defect("field \"weight_map\" is missing or not an object");
  }
  std::map<std::string, std::string> shards;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string() || !IsSafeShardName(shard.get<std::string>())) {
      return place.Defect(name, absl::StrCat("its file ", ShowJson(shard),
                                             " is not the name of a .safetensors file within the "
                                             "model folder"));
    }
    shards[name] = shard.get<std::string>();
  }
  if (shards.empty()) return place.Defect("field \"weight_map\" is empty");
  return shards;
}

}  // namespace

absl::Status SafetensorsFiles::AddFile(const std::string& model_dir, const std::string& name) {
  const std::string path = absl::StrCat(model_dir, "/", name);
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path, path));
  ASSIGN_OR_RETURN(auto tensors, ParseSafetensors(name, file->bytes()));
  for (auto& [tensor_name, tensor] : tensors) {
    const auto [it, inserted] = tensors_.emplace(tensor_name, std::move(tensor));
    if (!inserted) {
      return Place{name}.Defect(tensor_name, absl::StrCat("is in ", it->second.file, " too"));
    }
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsFiles> SafetensorsFiles::Open(const std::string& model_dir) {
  SafetensorsFiles all;
  const absl::Status single = all.AddFile(model_dir, kSingleFile);
  if (single.ok()) return all;
  if (!absl::IsNotFound(single)) return single;

  auto index = ReadIndex(model_dir);
  if (absl::IsNotFound(index.status())) {
    return absl::NotFoundError(absl::StrCat(model_dir, ": has neither ", kSingleFile, " nor ",
                                            kIndexFile, "; Baton reads safetensors weights only"));
  }
  if (!index.ok()) return index.status();
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : *index) shards.insert(shard);
  if (shards.size() > kMaxShards) {
    return Place{kIndexFile}.Defect(
        absl::StrCat("lists ", shards.size(), " files; at most ", kMaxShards, " are allowed"));
  }
  for (const std::string& shard : shards) RETURN_IF_ERROR(all.AddFile(model_dir, shard));
  for (const auto& [tensor, shard] : *index) {
    const auto it = all.tensors_.find(tensor);
    if (it == all.tensors_.end() || it->second.file != shard) {
      return Place{kIndexFile}.Defect(tensor, absl::StrCat("is not in ", shard));
    }
  }
  for (const auto& [name, tensor] : all.tensors_) {
    if (!index->contains(name)) {
      return Place{kIndexFile}.Defect(name,
                                      absl::StrCat("is in ", tensor.file, " but not in the index"));
    }
  }
  return all;
}

void SafetensorsFiles::Release(std::span<const std::byte> bytes) const {
  for (const std::unique_ptr<MappedFile>& file : files_) file->Release(bytes);
}

absl::Status SafetensorsFiles::UnreadableTensor() const {
  for (const auto& [name, tensor] : tensors_) {
    const absl::Status readable = TouchPages(tensor.bytes);
    Release(tensor.bytes);
    if (!readable.ok()) {
      return absl::Status(
          readable.code(),
          absl::StrCat(tensor.file, ": tensor ", ShowJson(name, 200), ": ", readable.message()));
    }
  }
  return absl::DataLossError("a tensor could not be read for a moment");
}

absl::StatusOr<std::vector<uint64_t>> SafetensorsFiles::PieceDigests(int num_threads,
                                                                     int nice) const {
  std::vector<std::span<const std::byte>> pieces;
  for (const auto& [name, tensor] : tensors_) {
    for (size_t at = 0; at < tensor.bytes.size(); at += kDigestPiece) {
      pieces.push_back(tensor.bytes.subspan(at, std::min(kDigestPiece, tensor.bytes.size() - at)));
    }
  }
  std::vector<uint64_t> digests(pieces.size());
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto hash = [&] {
    for (size_t i = next++; i < pieces.size() && !failed; i = next++) {
      if (!TouchPages(pieces[i]).ok()) {
        failed = true;
        return;
      }
      digests[i] = XXH3_64bits(pieces[i].data(), pieces[i].size());
      Release(pieces[i]);
    }
  };
  std::vector<std::jthread> others;
  const int most = static_cast<int>(std::min<size_t>(num_threads, pieces.size()));
  for (int i = 1; i < most; ++i) {
    others.emplace_back([&] {
      NameThisThread("digest");
      LowerThisThread(nice);
      hash();
    });
  }
  hash();
  others.clear();
  if (failed) return UnreadableTensor();
  return digests;
}

absl::StatusOr<uint64_t> SafetensorsFiles::Digest(int num_threads, int nice) const {
  // The shapes below say which pieces belong to which tensor.
  ASSIGN_OR_RETURN(const std::vector<uint64_t> pieces, PieceDigests(num_threads, nice));
  XXH3_state_t* state = XXH3_createState();
  absl::Cleanup free_state = [state] { XXH3_freeState(state); };
  XXH3_64bits_reset(state);
  const auto add_string = [&](const std::string& text) {
    const uint64_t size = text.size();
    XXH3_64bits_update(state, &size, sizeof size);
    XXH3_64bits_update(state, text.data(), text.size());
  };
  for (const auto& [name, tensor] : tensors_) {
    add_string(name);
    add_string(tensor.dtype);
    const uint64_t rank = tensor.shape.size();
    XXH3_64bits_update(state, &rank, sizeof rank);
    XXH3_64bits_update(state, tensor.shape.data(), rank * sizeof(int64_t));
  }
  XXH3_64bits_update(state, pieces.data(), pieces.size() * sizeof(uint64_t));
  return XXH3_64bits_digest(state);
}

}  // namespace baton
