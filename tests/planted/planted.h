#pragma once

#include <cstdlib>

namespace baton {

// The bug that is switched on in copies that plant_bugs.py wrote; -1: none.
inline int planted_bug = [] {
  const char* number = std::getenv("BATON_PLANTED_BUG");
  return number == nullptr ? -1 : std::atoi(number);
}();
inline bool planted(int bug) { return planted_bug == bug; }

}  // namespace baton
