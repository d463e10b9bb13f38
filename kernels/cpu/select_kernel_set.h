#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cpu/kernel_set.h"

namespace baton {

// "auto" takes the set that is the fastest on this family of CPUs; "x86_64_amx" (AVX-512 and AMX
// for bf16), "x86_64_v4_bf16" (AVX-512 with the bf16 dot product), "x86_64_v4" (AVX-512),
// "x86_64_v3" (AVX2) and "portable" force one. A set with AMX asks the system for leave to use it.
// INVALID_ARGUMENT: no such set, or this CPU cannot run it.
absl::StatusOr<const KernelSet*> SelectKernelSet(absl::string_view name);

}  // namespace baton
