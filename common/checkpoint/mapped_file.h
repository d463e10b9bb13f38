#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace baton {

// A whole regular file mapped read-only until destruction. Its size is read once, when it is
// opened, and never read beyond; the operator must not shrink the file while it is mapped.
class MappedFile {
 public:
  // `name` stands for the file in messages. NotFound, or InvalidArgument for what is not a
  // non-empty regular file.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path,
                                                          const std::string& name);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

  // Gives back the memory of the pages that hold `part`; whoever reads them again gets them from
  // the file. Any thread. What is not part of this file is left alone.
  void Release(std::span<const std::byte> part) const;

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> bytes_;
};

}  // namespace baton
