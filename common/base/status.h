#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the calling function when `expr` is not OK.
#define RETURN_IF_ERROR(expr)                          \
  do {                                                 \
    if (absl::Status status_ = (expr); !status_.ok()) { \
      return status_;                                  \
    }                                                  \
  } while (false)

#define BATON_STATUS_CONCAT_INNER(a, b) a##b
#define BATON_STATUS_CONCAT(a, b) BATON_STATUS_CONCAT_INNER(a, b)
#define BATON_ASSIGN_OR_RETURN(var, lhs, expr) \
  auto var = (expr);                           \
  if (!var.ok()) return std::move(var).status(); \
  lhs = *std::move(var)

// Declares or assigns `lhs` from a StatusOr, or returns its error.
#define ASSIGN_OR_RETURN(lhs, expr) \
  BATON_ASSIGN_OR_RETURN(BATON_STATUS_CONCAT(status_or_, __LINE__), lhs, expr)
