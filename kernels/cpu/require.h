#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton {

// The one form of an argument's error: "field = value: must be ...".
inline absl::Status Require(bool ok, absl::string_view field, int64_t value,
                            absl::string_view allowed) {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", value, ": must be ", allowed));
}

inline absl::Status RequirePointer(const void* p, absl::string_view field) {
  if (p != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " = null: must point to data"));
}

inline absl::Status RequireAtLeast(int64_t value, int64_t least, absl::string_view field) {
  if (value >= least) return absl::OkStatus();
  return Require(false, field, value, absl::StrCat("at least ", least));
}

}  // namespace baton
