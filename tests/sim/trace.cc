#include "tests/sim/trace.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton::sim {

void Trace::Add(Time when, int column, std::string text) {
  lines_.push_back({when, column, std::move(text)});
  if (lines_.size() > kMaxLines) lines_.pop_front();
}

std::string Trace::Table() const {
  constexpr int kWidth = 14;
  std::string table = absl::StrFormat("%12s  %-*s", "time us", kWidth, "network");
  for (const std::string& name : columns_) absl::StrAppendFormat(&table, "%-*s", kWidth, name);
  table += "\n";
  for (const Line& line : lines_) {
    const auto us = line.when.time_since_epoch().count() / 1000;
    std::string text = absl::StrFormat("%12d  ", us);
    for (int c = -1; c < line.column; ++c) {
      absl::StrAppendFormat(&text, "%-*s", kWidth, c < 0 ? "" : "|");
    }
    absl::StrAppend(&table, text, line.text, "\n");
  }
  return table;
}

}  // namespace baton::sim
