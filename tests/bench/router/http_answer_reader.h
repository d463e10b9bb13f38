#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton::bench {

// Reads one HTTP/1.1 answer as it comes, however it is cut: its status, the events of a stream, and
// where it ends. Trusts the server more than a client should: it is for load generators.
class HttpAnswerReader {
 public:
  // Takes what came; false if it cannot be an answer.
  bool Take(std::string_view bytes);

  bool done() const { return state_ == State::kDone; }
  int status() const { return status_; }
  int64_t num_events() const { return num_events_; }  // "data: {" so far.
  bool closes() const { return closes_; }             // No further request on this connection.

 private:
  enum class State { kHead, kSize, kData, kDataEnd, kTrailer, kSized, kDone };

  bool TakeHead();
  bool TakeSize(std::string_view line);
  // The next whole line of `rest`, or of it and what came before; false if it has not ended yet.
  bool TakeLine(std::string_view& rest, std::string& line);
  void CountEvents(std::string_view bytes);

  State state_ = State::kHead;
  std::string line_;  // That has not ended.
  std::vector<std::string> head_;
  int status_ = 0;
  size_t left_ = 0;  // Of a chunk, or of a body with a length.
  size_t matched_ = 0;
  int64_t num_events_ = 0;
  bool closes_ = false;
};

}  // namespace baton::bench
