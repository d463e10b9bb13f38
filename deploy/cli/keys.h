#pragma once

#include <string>
#include <vector>

namespace baton::cli {

struct KeysOptions {
  std::string file;
  std::string tenant;                // Of `add`.
  std::vector<std::string> options;  // Of its line.
  std::string id;                    // Of `remove`.
};

// `baton keys add|list|remove|check`: exit code 0, or 2 after one line on stderr; of `check` after
// one for each bad line.
int AddKey(const KeysOptions& options);
int ListKeys(const KeysOptions& options);
int RemoveKey(const KeysOptions& options);
int CheckKeys(const KeysOptions& options);

}  // namespace baton::cli
