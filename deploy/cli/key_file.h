#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::cli {

// One key as it may be shown: of its digest what tells it from others.
struct ListedKey {
  std::string tenant;
  std::string id;  // The first digits of the digest.
  std::string options;
};

// A router's --api-keys-file, changed as a whole: a reader finds the old file or the new one, with
// mode 0600 and the owner that it had. No edit makes a file that the router would refuse. Errors
// name the file, what is wrong and the cure.
class KeyFile {
 public:
  explicit KeyFile(std::string path) : path_(std::move(path)) {}

  // Makes a key of 256 bits for a tenant and returns it; the file has its digest alone. Without
  // options that limit the tenant (`rate=5/s`, ...) those of its other keys hold. Makes the file if
  // there is none.
  absl::StatusOr<std::string> Add(const std::string& tenant,
                                  const std::vector<std::string>& options) const;

  // The one key whose digest begins so. Not the last one: without any the router would go on with
  // the old file.
  absl::Status Remove(const std::string& id) const;

  absl::StatusOr<std::vector<ListedKey>> List() const;

  // For each bad line what is wrong with it.
  absl::StatusOr<std::vector<std::string>> Check() const;

 private:
  absl::StatusOr<std::string> Read() const;
  absl::Status Fail(absl::StatusCode code, const std::string& what) const;

  const std::string path_;
};

}  // namespace baton::cli
