#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

// The log of a process: one line per event on stderr, `time level event key=value ...`, written by
// any thread. Never prompts, tokens, keys or secrets. Lines that cannot be written (a full disk)
// are dropped.
namespace baton {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning" or "error"; false for anything else.
bool ParseLogLevel(absl::string_view text, LogLevel* level);

struct LogField {
  template <typename Value>
  LogField(absl::string_view k, const Value& v) : key(k), value(Text(v)) {}

  std::string key;
  std::string value;

 private:
  static std::string Text(bool v) { return v ? "true" : "false"; }
  static std::string Text(const absl::Status& v) { return v.ToString(); }
  template <typename Value>
  static std::string Text(const Value& v) {
    return absl::StrCat(v);
  }
};

// Lines below `level` are not written from now on. The level is info before the first call.
void SetLogLevel(LogLevel level);

void Log(LogLevel level, absl::string_view event, std::initializer_list<LogField> fields = {});

// While it lives, Log hands its lines to a thread that writes them, and never waits for whoever
// reads them: at most 4,096 lines wait, more are dropped, and a line says how many. One at a time.
class LogThread {
 public:
  LogThread();
  // Waits until all lines are written, and Log writes by itself again. If nobody has read them for
  // 2 s, the thread stays, and Log does not wait either.
  ~LogThread();

  LogThread(const LogThread&) = delete;
  LogThread& operator=(const LogThread&) = delete;

 private:
  class Ring;
  friend class LogSink;
  friend void FlushLog();
  const std::shared_ptr<Ring> ring_;
  std::thread thread_;
};

// Before the process ends without its destructors: waits until all lines so far are written.
void FlushLog();

// What Log writes after time and level. Values with spaces, quotes or control characters are
// quoted and escaped, so that a line stays one line whatever a peer sent.
std::string FormatLogLine(absl::string_view event, std::initializer_list<LogField> fields);

}  // namespace baton
