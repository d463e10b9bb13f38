#include "deploy/cli/keys.h"

#include <cstdio>

#include "common/process/command_line.h"
#include "deploy/cli/key_file.h"

namespace baton::cli {
namespace {

int Fail(const absl::Status& status) { return FailToStart("baton keys", status); }

}  // namespace

int AddKey(const KeysOptions& options) {
  const absl::StatusOr<std::string> key = KeyFile(options.file).Add(options.tenant,
                                                                    options.options);
  if (!key.ok()) return Fail(key.status());
  std::printf("%s\n", key->c_str());
  return 0;
}

int ListKeys(const KeysOptions& options) {
  const absl::StatusOr<std::vector<ListedKey>> keys = KeyFile(options.file).List();
  if (!keys.ok()) return Fail(keys.status());
  std::printf("%-13s %-16s %s\n", "ID", "TENANT", "OPTIONS");
  for (const ListedKey& key : *keys) {
    std::printf("%-13s %-16s %s\n", key.id.c_str(), key.tenant.c_str(), key.options.c_str());
  }
  return 0;
}

int RemoveKey(const KeysOptions& options) {
  const absl::Status status = KeyFile(options.file).Remove(options.id);
  return status.ok() ? 0 : Fail(status);
}

int CheckKeys(const KeysOptions& options) {
  const absl::StatusOr<std::vector<std::string>> problems = KeyFile(options.file).Check();
  if (!problems.ok()) return Fail(problems.status());
  for (const std::string& problem : *problems) {
    std::fprintf(stderr, "baton keys: %s: %s\n", options.file.c_str(), problem.c_str());
  }
  return problems->empty() ? 0 : 2;
}

}  // namespace baton::cli
