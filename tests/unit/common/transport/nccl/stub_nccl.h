#pragma once

#include <string>
#include <vector>

#include "common/transport/nccl/nccl_abi.h"

namespace baton::nccl {

// What the stub says and was asked, shared with the test by the symbol "stub_nccl".
struct Stub {
  int version = kOldestVersion;
  Result result = Result::kSuccess;  // Of every call but GetVersion.
  Result version_result = Result::kSuccess;
  Result async = Result::kSuccess;
  const char* last_error = "";
  std::vector<std::string> calls;
  Config config;
};

}  // namespace baton::nccl
