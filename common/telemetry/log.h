#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

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

// What Log writes after time and level. Values with spaces, quotes or control characters are
// quoted and escaped, so that a line stays one line whatever a peer sent.
std::string FormatLogLine(absl::string_view event, std::initializer_list<LogField> fields);

}  // namespace baton
