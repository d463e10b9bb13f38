#pragma once

#include <string>

namespace baton::cli {

// One line of the doctor's report. A problem carries its cure.
struct Finding {
  std::string subject;  // "CPU", "memory", ...
  std::string fact;
  std::string cure;  // Empty = no problem.
};

}  // namespace baton::cli
