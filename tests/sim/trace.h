#pragma once

#include <deque>
#include <string>
#include <vector>

#include "common/base/time.h"

namespace baton::sim {

// What happened, as a table: one line per event, one column per node. Off by default, because a
// seed replays: a run that fails is run again with the trace on.
class Trace {
 public:
  void TurnOn(std::vector<std::string> columns) {
    on_ = true;
    columns_ = std::move(columns);
  }
  bool on() const { return on_; }
  // `column` -1: clients and network.
  void Add(Time when, int column, std::string text);
  std::string Table() const;

 private:
  static constexpr size_t kMaxLines = 2000;
  struct Line {
    Time when;
    int column = 0;
    std::string text;
  };
  bool on_ = false;
  std::vector<std::string> columns_;
  std::deque<Line> lines_;
};

}  // namespace baton::sim
