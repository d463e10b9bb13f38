#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/mapped_file.h"

namespace baton {

// A tensor as the header of a safetensors file describes it.
struct StoredTensor {
  std::string dtype;  // As stored, e.g. "BF16", "I64"; one of the format's list.
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // Exactly product(shape) * item size.
  std::string file;                  // The file's name within the model folder, for messages.
};

// The header of one safetensors file held in memory, checked in full: header <= 16 MiB and nested
// <= 8, known dtypes, begin <= end, length == product(shape) * item size, tensors in a row from 0
// to the file's end without overlap or hole, no name twice. `file` names it in errors. The result's
// spans point into `contents`. Anything else is InvalidArgument with file, tensor and defect.
absl::StatusOr<std::map<std::string, StoredTensor>> ParseSafetensors(
    const std::string& file, std::span<const std::byte> contents);

// All tensors of a model folder: model.safetensors, or else the shards that
// model.safetensors.index.json lists. Owns the mappings; move-only; immutable once open, so any
// thread may read it.
class SafetensorsFiles {
 public:
  // InvalidArgument or NotFound, naming the file, the tensor and the defect. Shards must lie under
  // `model_dir` by their names: relative and without "..".
  static absl::StatusOr<SafetensorsFiles> Open(const std::string& model_dir);

  // By name, ascending.
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

  // Gives back the memory of `bytes` of a tensor; reading them again reads the file. Any thread.
  void Release(std::span<const std::byte> bytes) const;

  // 64 bits over the tensor table (names, dtypes, shapes) and every tensor's bytes (XXH3); does not
  // depend on how the tensors are spread over files. Reads everything once, with `num_threads` >= 1
  // threads, and keeps none of it in memory. `nice` is added to the niceness of all but the caller.
  // DATA_LOSS names what cannot be read, of a file that has become shorter.
  absl::StatusOr<uint64_t> Digest(int num_threads = 1, int nice = 0) const;

 private:
  SafetensorsFiles() = default;

  // Of each piece of each tensor, in the order of names.
  absl::StatusOr<std::vector<uint64_t>> PieceDigests(int num_threads, int nice) const;
  // The status of the first that cannot be read.
  absl::Status UnreadableTensor() const;
  absl::Status AddFile(const std::string& model_dir, const std::string& name);

  std::vector<std::unique_ptr<MappedFile>> files_;
  std::map<std::string, StoredTensor> tensors_;
};

}  // namespace baton
