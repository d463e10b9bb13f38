#pragma once

#include <cstdint>
#include <cstdlib>

namespace baton {

inline int64_t FuzzNumber(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}
inline int64_t FirstFuzzSeed() { return FuzzNumber("BATON_FUZZ_SEED", 1); }
inline int64_t FuzzCases(int64_t otherwise = 60) {
  return FuzzNumber("BATON_FUZZ_CASES", otherwise);
}
// Fewer where each takes seconds of an emulated GPU.
inline int64_t FuzzCasesOrNightly(int64_t otherwise, int64_t nightly) {
  return FuzzCases(std::getenv("BATON_NIGHTLY") == nullptr ? otherwise : nightly);
}

}  // namespace baton
