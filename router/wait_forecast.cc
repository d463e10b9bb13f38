#include "router/wait_forecast.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace baton {
namespace {

constexpr double kMemory = 10;  // Seconds of backlog.
constexpr double kLeastSeconds = 1;
// A worker's first step may take long and says nothing.
constexpr int64_t kLeastStarted = 8;
constexpr double kAnswerStep = 0.05;
constexpr double kMostSeconds = 3600;

}  // namespace

void WaitForecast::Advance(Time now) {
  if (is_backlogged_ && now > at_) {
    const double passed = ToSeconds(now - at_);
    const double kept = std::exp(-passed / kMemory);
    cost_ *= kept;
    seconds_ = seconds_ * kept + kMemory * (1 - kept);
  }
  if (is_backlogged_) last_seen_ = std::max(last_seen_, now);
  at_ = std::max(at_, now);
  BATON_CHECK(cost_ >= 0 && seconds_ >= 0);
}

void WaitForecast::OnStarted(int64_t cost, Time now) {
  BATON_CHECK(cost >= 0);
  Advance(now);
  if (!is_backlogged_) return;
  cost_ += static_cast<double>(cost);
  ++num_started_;
}

// What was measured long ago may have been a worker's bad moment.
void WaitForecast::OnTurn(bool is_backlogged, Time now) {
  Advance(now);
  if (is_backlogged && !is_backlogged_ && ToSeconds(now - last_seen_) > kMemory) {
    cost_ = seconds_ = 0;
    num_started_ = 0;
  }
  is_backlogged_ = is_backlogged;
}

void WaitForecast::OnAnswer(int64_t tokens) {
  BATON_CHECK(tokens >= 0);
  const auto length = static_cast<double>(tokens);
  answer_ = answer_ ? *answer_ + kAnswerStep * (length - *answer_) : length;
}

int64_t WaitForecast::ExpectedTokens(int64_t max_tokens) const {
  return std::min(max_tokens, static_cast<int64_t>(answer_.value_or(0)));
}

std::optional<Duration> WaitForecast::Until(int64_t cost, Time now) {
  Advance(now);
  if (num_started_ < kLeastStarted || seconds_ < kLeastSeconds) return std::nullopt;
  const double seconds = static_cast<double>(cost) * seconds_ / std::max(cost_, 1e-9);
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(seconds, kMostSeconds)));
}

}  // namespace baton
