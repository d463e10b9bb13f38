#pragma once

#include <map>
#include <string>
#include <string_view>

#include "common/base/time.h"

namespace baton {

// How the calling thread is called in /proc and top: at most 15 characters.
void NameThisThread(const char* name);

// For threads that a library makes and does not name: while this lives, those that the calling
// thread makes are called `name`, which they inherit.
class NameNewThreads {
 public:
  explicit NameNewThreads(const char* name);
  ~NameNewThreads();
  NameNewThreads(const NameNewThreads&) = delete;
  NameNewThreads& operator=(const NameNewThreads&) = delete;

 private:
  char own_name_[16];
};

// Adds `nice` >= 0 to the niceness of the calling thread, to 19 at most, so that others on the same
// cores come first. For good: lowering it again may be forbidden. Does nothing where niceness
// belongs to the process.
void LowerThisThread(int nice);

// How long each has stood in line for a core so far, by the number that the system gave it.
using QueuedThreads = std::map<std::string, Duration>;

// Of the threads of this process whose names begin so. Empty where the system does not say.
QueuedThreads QueuedForCore(std::string_view name_prefix);

}  // namespace baton
