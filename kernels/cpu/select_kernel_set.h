#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cpu/kernel_set.h"

namespace baton {

// "auto" takes the fastest set that this CPU runs; "x86_64_v3" and "portable" force one.
// INVALID_ARGUMENT: no such set, or this CPU cannot run it. All sets give the same bits.
absl::StatusOr<const KernelSet*> SelectKernelSet(absl::string_view name);

}  // namespace baton
