#include "kernels/cpu/select_kernel_set.h"

#include "absl/strings/str_cat.h"

namespace baton {

namespace portable {
const KernelSet* Table();
}  // namespace portable
#if defined(BATON_HAS_X86_64_V3)
namespace x86_64_v3 {
const KernelSet* Table();
}  // namespace x86_64_v3
#endif

namespace {

// Null when this CPU (or its operating system) lacks AVX2, FMA or F16C.
const KernelSet* X8664V3OrNull() {
#if defined(BATON_HAS_X86_64_V3)
  // GCC's check includes XGETBV: that the system saves the wide registers.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    return x86_64_v3::Table();
  }
#endif
  return nullptr;
}

}  // namespace

absl::StatusOr<const KernelSet*> SelectKernelSet(absl::string_view name) {
  const KernelSet* v3 = X8664V3OrNull();
  if (name == "auto") return v3 != nullptr ? v3 : portable::Table();
  if (name == "portable") return portable::Table();
  if (name != "x86_64_v3") {
    return absl::InvalidArgumentError(
        absl::StrCat("kernels = \"", name, "\": must be auto, x86_64_v3 or portable"));
  }
  if (v3 == nullptr) {
    return absl::InvalidArgumentError(
        "kernels = \"x86_64_v3\": this CPU lacks AVX2, FMA or F16C; use auto or portable");
  }
  return v3;
}

}  // namespace baton
