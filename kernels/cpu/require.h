#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace baton {

// The name of an argument in one or two pieces, put together only for an error: a step checks many
// arguments and allocates nothing.
struct FieldName {
  FieldName(const char* first) : prefix(first) {}         // NOLINT: a plain name is a name.
  FieldName(const std::string& first) : prefix(first) {}  // NOLINT
  FieldName(absl::string_view first, absl::string_view last = "") : prefix(first), suffix(last) {}

  absl::string_view prefix, suffix;
};

// The one form of an argument's error: "field = value: must be ...".
inline absl::Status Require(bool ok, FieldName field, int64_t value, const absl::AlphaNum& allowed,
                            const absl::AlphaNum& more = "") {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field.prefix, field.suffix, " = ", value, ": must be ") +
      absl::StrCat(allowed, more));
}

inline absl::Status RequirePointer(const void* p, FieldName field) {
  if (p != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field.prefix, field.suffix, " = null: must point to data"));
}

inline absl::Status RequireAtLeast(int64_t value, int64_t least, FieldName field) {
  return Require(value >= least, field, value, "at least ", least);
}

inline absl::Status RequireIn(int64_t value, int64_t least, int64_t greatest, FieldName field) {
  if (value >= least && value <= greatest) return absl::OkStatus();
  return Require(false, field, value, absl::StrCat("in [", least, ", ", greatest, "]"));
}

}  // namespace baton
