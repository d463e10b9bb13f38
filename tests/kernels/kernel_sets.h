#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "kernels/cpu/select_kernel_set.h"

namespace baton {

// The kernel sets that this CPU runs; the portable one always. Says once which it does not, and
// why: tests/summary.py counts that, and fails if the CPU has what the set needs.
inline std::vector<std::string> KernelSets() {
  static const auto kSets = [] {
    std::vector<std::string> names = {"portable"};
    for (const char* name : {"x86_64_v3", "x86_64_v4", "x86_64_v4_bf16", "x86_64_amx"}) {
      const auto set = SelectKernelSet(name);
      if (set.ok()) names.push_back(name);
      if (!set.ok()) std::fprintf(stderr, "not tested: %s\n", set.status().ToString().c_str());
    }
    return names;
  }();
  return kSets;
}

}  // namespace baton
