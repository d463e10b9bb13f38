#include "kernels/cpu/select_kernel_set.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "absl/strings/str_cat.h"

namespace baton {

namespace portable {
const KernelSet* Table();
}  // namespace portable
#if defined(BATON_HAS_X86_64_SETS)
namespace x86_64_v3 {
const KernelSet* Table();
}  // namespace x86_64_v3
namespace x86_64_v4 {
const KernelSet* Table();
}  // namespace x86_64_v4
namespace x86_64_v4_bf16 {
const KernelSet* Table();
}  // namespace x86_64_v4_bf16
namespace x86_64_amx {
const KernelSet* Table();
}  // namespace x86_64_amx
#endif

namespace {

// A set, what the CPU (and its operating system) must have for it, and where it is the fastest.
struct Candidate {
  const KernelSet* (*table)();
  absl::string_view name;
  absl::string_view needs;
  bool (*runs)();
  bool (*is_fast)();
};

bool Always() { return true; }

#if defined(BATON_HAS_X86_64_SETS)

// GCC's checks include XGETBV: that the system saves the wide registers.
bool RunsV3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool RunsV4() {
  return RunsV3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

bool RunsV4Bf16() { return RunsV4() && __builtin_cpu_supports("avx512bf16"); }

// AMD since Zen 4 multiplies bf16 pairs at the rate of fp32 lanes: twice the products. Intel's
// cores do so at half that rate at best, so nothing is won.
bool IsFastV4Bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0 || ebx != signature_AMD_ebx) return false;
  __get_cpuid(1, &eax, &ebx, &ecx, &edx);
  const unsigned family = (eax >> 8 & 0xf) + (eax >> 20 & 0xff);
  // Of family 0x19 only Zen 4 has the instruction; 0x1a is Zen 5.
  return family >= 0x19;
}

// Linux gives a process the large state of tiles only when asked, and refuses where a thread's
// signal stack is too small for it (Documentation/arch/x86/xstate.rst).
bool MayUseTiles() {
  constexpr int64_t kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int64_t kTileData = 18;               // XFEATURE_XTILEDATA
  static const bool permitted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return permitted;
}

// GCC 12 has no name for these features.
bool RunsAmx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!RunsV4Bf16() || __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kFeatures = bit_AMX_BF16 | bit_AMX_TILE;
  if ((edx & kFeatures) != kFeatures) return false;
  // That the system saves the tiles' shapes and contents.
  constexpr unsigned kTileState = 3u << 17;
  unsigned enabled = 0, upper = 0;
  asm("xgetbv" : "=a"(enabled), "=d"(upper) : "c"(0));
  return (enabled & kTileState) == kTileState && MayUseTiles();
}

#endif

// The fastest first.
constexpr Candidate kCandidates[] = {
#if defined(BATON_HAS_X86_64_SETS)
    {x86_64_amx::Table, "x86_64_amx", "AVX-512 or AMX with bf16, or the system keeps it back",
     RunsAmx, Always},
    {x86_64_v4_bf16::Table, "x86_64_v4_bf16", "AVX-512 or its bf16 dot product", RunsV4Bf16,
     IsFastV4Bf16},
    {x86_64_v4::Table, "x86_64_v4", "AVX-512 (F, BW, CD, DQ, VL)", RunsV4, Always},
    {x86_64_v3::Table, "x86_64_v3", "AVX2, FMA or F16C", RunsV3, Always},
#endif
    {portable::Table, "portable", "", Always, Always},
};

}  // namespace

absl::StatusOr<const KernelSet*> SelectKernelSet(absl::string_view name) {
  for (const Candidate& candidate : kCandidates) {
    if (name == "auto" && candidate.runs() && candidate.is_fast()) return candidate.table();
    if (name != candidate.name) continue;
    if (candidate.runs()) return candidate.table();
    return absl::InvalidArgumentError(absl::StrCat("kernels = \"", name, "\": this CPU lacks ",
                                                   candidate.needs, "; use auto or portable"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "kernels = \"", name,
      "\": must be auto, x86_64_amx, x86_64_v4_bf16, x86_64_v4, x86_64_v3 or portable"));
}

}  // namespace baton
