#pragma once

#include <functional>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::cli {

// Splits a stream of server-sent events (WHATWG HTML, section 9.2) into the data of each event,
// whatever the pieces in which the bytes arrive. Fields other than "data" are dropped.
class ServerEvents {
 public:
  using Sink = std::function<void(absl::string_view data)>;
  explicit ServerEvents(Sink sink) : sink_(std::move(sink)) {}

  void Feed(absl::string_view bytes);

 private:
  void TakeLine(absl::string_view line);

  Sink sink_;
  std::string partial_;  // The line that has no end yet.
  std::string data_;     // Of the event that has no end yet.
  bool has_data_ = false;
};

}  // namespace baton::cli
