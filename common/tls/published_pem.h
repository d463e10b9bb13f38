#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace baton {

// A path of this process whose content is replaced as a whole, for libraries that read files. It is
// in memory alone, so nothing of a key is left when the process is killed. Not thread-safe, but for
// readers of the path.
class PublishedPem {
 public:
  static absl::StatusOr<std::unique_ptr<PublishedPem>> Create(const std::string& text);
  ~PublishedPem();
  PublishedPem(const PublishedPem&) = delete;
  PublishedPem& operator=(const PublishedPem&) = delete;

  // The modification time is another one each time, so that a reader who opens the path several
  // times sees that it was replaced between.
  absl::Status Publish(const std::string& text);

  std::string path() const;

 private:
  PublishedPem() = default;

  int fd_ = -1;
  int64_t edition_ = 0;
};

}  // namespace baton
