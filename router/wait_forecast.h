#pragma once

#include <cstdint>
#include <optional>

#include "common/base/time.h"

namespace baton {

// How fast requests leave the queue while there are more than the workers take, measured. Costs
// are tokens: of prompts, and expected ones of answers. One thread (the node's).
class WaitForecast {
 public:
  // A request was given to workers.
  void OnStarted(int64_t cost, Time now);
  // All that workers take now has been given to them; is there more?
  void OnTurn(bool is_backlogged, Time now);
  // A sequence has ended with so many tokens.
  void OnAnswer(int64_t tokens);

  // Of the next answer: as long as answers were of late, and at most that.
  int64_t ExpectedTokens(int64_t max_tokens) const;
  // How long until so much has been given to workers; nothing while too little was seen.
  std::optional<Duration> Until(int64_t cost, Time now);

 private:
  void Advance(Time now);

  double cost_ = 0;     // That was started during a backlog, less for what was long ago.
  double seconds_ = 0;  // Of backlog, likewise.
  bool is_backlogged_ = false;
  Time at_{};        // Of what is counted.
  Time last_seen_{};  // The last moment of backlog.
  int64_t num_started_ = 0;  // During a backlog.
  std::optional<double> answer_;
};

}  // namespace baton
