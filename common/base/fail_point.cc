#include "common/base/fail_point.h"

#ifdef BATON_FAIL_POINTS
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace baton {
namespace {

struct Fault {
  std::string name;  // Empty = none is asked for.
  std::string action;
  int signal = 0;
  int64_t count = 0;
  std::string log;
};

[[noreturn]] void Refuse(const char* variable, const char* value) {
  std::fprintf(stderr, "%s=%s: see common/base/fail_point.h\n", variable, value);
  std::_Exit(2);
}

Fault ReadEnvironment() {
  Fault fault;
  const char* text = std::getenv("BATON_FAIL_POINT");
  if (text == nullptr) return fault;
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[2], &fault.count) || fault.count < 1) {
    Refuse("BATON_FAIL_POINT", text);
  }
  fault.name = parts[0];
  fault.action = parts[1];
  fault.signal = fault.action == "kill"   ? SIGKILL
                 : fault.action == "stop" ? SIGSTOP
                 : fault.action == "term" ? SIGTERM
                                          : 0;
  if (fault.signal == 0 && fault.action != "hang") Refuse("BATON_FAIL_POINT", text);
  const char* log = std::getenv("BATON_FAIL_LOG");
  if (log == nullptr) Refuse("BATON_FAIL_LOG", "");
  fault.log = log;
  return fault;
}

// One write, so that the line is whole whatever happens next.
void Append(const std::string& file, const std::string& line) {
  const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0 || write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    Refuse("BATON_FAIL_LOG", file.c_str());
  }
  close(fd);
}

}  // namespace

void PassFailPoint(std::string_view name) {
  static const Fault fault = ReadEnvironment();
  static std::atomic<int64_t> passes = 0;
  if (fault.name != name || passes.fetch_add(1) + 1 != fault.count) return;
  Append(fault.log, absl::StrCat(fault.name, " ", fault.action, " ", getpid(), "\n"));
  while (fault.signal == 0) pause();
  kill(getpid(), fault.signal);
}

}  // namespace baton
#endif
