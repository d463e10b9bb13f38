#include "tests/bench/router/http_answer_reader.h"

#include <charconv>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace baton::bench {
namespace {

constexpr std::string_view kEvent = "data: {";  // Its first character occurs in it once.

}  // namespace

bool HttpAnswerReader::Take(std::string_view bytes) {
  std::string line;
  while (!bytes.empty() && state_ != State::kDone) {
    if (state_ == State::kData || state_ == State::kSized) {
      const std::string_view data = bytes.substr(0, left_);
      CountEvents(data);
      bytes.remove_prefix(data.size());
      left_ -= data.size();
      if (left_ == 0) state_ = state_ == State::kData ? State::kDataEnd : State::kDone;
      continue;
    }
    if (!TakeLine(bytes, line)) return true;
    if (state_ == State::kHead) {
      if (!line.empty()) {
        head_.push_back(line);
      } else if (!TakeHead()) {
        return false;
      }
    } else if (state_ == State::kSize) {
      if (!TakeSize(line)) return false;
    } else if (state_ == State::kDataEnd) {
      state_ = State::kSize;
    } else if (line.empty()) {
      state_ = State::kDone;
    }
  }
  return bytes.empty();
}

bool HttpAnswerReader::TakeLine(std::string_view& rest, std::string& line) {
  const size_t end = rest.find('\n');
  line_.append(rest.substr(0, end));
  if (end == rest.npos) return rest = {}, false;
  rest.remove_prefix(end + 1);
  if (line_.ends_with('\r')) line_.pop_back();
  line = std::exchange(line_, {});
  return true;
}

bool HttpAnswerReader::TakeHead() {
  // "HTTP/1.1 200 OK"
  if (head_.empty() || head_[0].size() < 12 || !head_[0].starts_with("HTTP/1.1 ")) return false;
  if (!absl::SimpleAtoi(head_[0].substr(9, 3), &status_)) return false;
  state_ = State::kDone;
  for (const std::string& header : head_) {
    const std::string lower = absl::AsciiStrToLower(header);
    if (lower == "transfer-encoding: chunked") state_ = State::kSize;
    if (lower == "connection: close") closes_ = true;
    if (!lower.starts_with("content-length: ")) continue;
    if (!absl::SimpleAtoi(lower.substr(16), &left_)) return false;
    if (left_ > 0) state_ = State::kSized;
  }
  return true;
}

bool HttpAnswerReader::TakeSize(std::string_view line) {
  const auto [end, error] = std::from_chars(line.begin(), line.end(), left_, 16);
  if (error != std::errc() || end == line.begin()) return false;
  state_ = left_ > 0 ? State::kData : State::kTrailer;
  return true;
}

void HttpAnswerReader::CountEvents(std::string_view bytes) {
  for (const char c : bytes) {
    if (c == kEvent[matched_]) {
      if (++matched_ < kEvent.size()) continue;
      ++num_events_;
      matched_ = 0;
    } else {
      matched_ = c == kEvent[0] ? 1 : 0;
    }
  }
}

}  // namespace baton::bench
