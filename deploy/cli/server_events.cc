#include "deploy/cli/server_events.h"

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace baton::cli {

void ServerEvents::Feed(absl::string_view bytes) {
  partial_.append(bytes.data(), bytes.size());
  size_t begin = 0;
  for (size_t end = 0; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    TakeLine(absl::StripSuffix(absl::string_view(partial_).substr(begin, end - begin), "\r"));
  }
  partial_.erase(0, begin);
}

void ServerEvents::TakeLine(absl::string_view line) {
  if (line.empty()) {
    if (has_data_) sink_(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  if (!absl::ConsumePrefix(&line, "data:")) return;
  absl::ConsumePrefix(&line, " ");
  if (has_data_) data_ += '\n';
  data_.append(line.data(), line.size());
  has_data_ = true;
}

}  // namespace baton::cli
