#include "router/front/stream_limits.h"

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include "common/base/check.h"

namespace baton {
namespace {

// Of the resets that a connection's place goes by: fewer than each of a thousand gets through.
constexpr double kForgottenPerS = 1;
// Of a network's that have gone: what is forgotten in a quarter of an hour, of so many networks.
constexpr double kMostRemembered = 1000;
constexpr size_t kMostNetworks = 4096;
// So much of the turns is made up for when nobody asked in time.
constexpr Duration kMostLate = std::chrono::milliseconds(100);

}  // namespace

double StreamLimits::Level::At(double per_s, Time now) const {
  const double passed_s = std::chrono::duration<double>(now - at).count();
  return std::max(0.0, value - per_s * passed_s);
}

void StreamLimits::Level::Add(double count, double per_s, Time now) {
  value = At(per_s, now) + count;
  at = now;
}

void StreamLimits::Add(Id id, const std::string& network, Time now) {
  Connection& connection = connections_[id];
  connection.network = network;
  if (const auto gone = resets_of_gone_.find(network); gone != resets_of_gone_.end()) {
    connection.resets_before.Add(gone->second.At(kForgottenPerS, now), kForgottenPerS, now);
  }
}

void StreamLimits::Remember(const std::string& network, double resets, Time now) {
  if (resets == 0) return;
  if (resets_of_gone_.size() >= kMostNetworks && !resets_of_gone_.contains(network)) {
    std::erase_if(resets_of_gone_,
                  [now](const auto& gone) { return gone.second.At(kForgottenPerS, now) == 0; });
    if (resets_of_gone_.size() >= kMostNetworks) return;
  }
  Level& level = resets_of_gone_[network];
  level.Add(resets, kForgottenPerS, now);
  level.value = std::min(level.value, kMostRemembered);
}

void StreamLimits::Remove(Id id, Time now) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  Remember(it->second.network,
           it->second.resets.At(kForgottenPerS, now) + static_cast<double>(it->second.num_open),
           now);
  debt_.Add(static_cast<double>(it->second.num_open), options_.digested_per_s, now);
  num_open_ -= it->second.num_open;
  if (it->second.waits_since != 0) --num_waiting_;
  connections_.erase(it);
}

bool StreamLimits::TakeTurn(Time now) {
  if (Debt(now) <= options_.most_debt) return true;
  if (now < next_turn_) return false;
  next_turn_ = std::max(next_turn_, now - kMostLate) +
               std::chrono::duration_cast<Duration>(
                   std::chrono::duration<double>(1 / options_.digested_per_s));
  return true;
}

bool StreamLimits::MayOpen(Id id, Time now) {
  Connection& connection = connections_.at(id);
  BATON_CHECK(connection.waits_since == 0);
  if (num_waiting_ == 0 && TakeTurn(now)) return true;
  connection.waits_since = ++last_wait_;
  ++num_waiting_;
  return false;
}

std::optional<StreamLimits::Id> StreamLimits::Next(Time now) {
  if (num_waiting_ == 0 || !TakeTurn(now)) return std::nullopt;
  const auto place = [now](const Connection& c) {
    const double resets =
        c.resets.At(kForgottenPerS, now) + c.resets_before.At(kForgottenPerS, now);
    return std::tuple(c.waits_since == 0, resets, c.waits_since);
  };
  const auto first = std::min_element(
      connections_.begin(), connections_.end(),
      [&place](const auto& a, const auto& b) { return place(a.second) < place(b.second); });
  first->second.waits_since = 0;
  --num_waiting_;
  return first->first;
}

std::optional<StreamLimits::Id> StreamLimits::CountOpened(Id id) {
  Connection& connection = connections_.at(id);
  ++connection.num_open;
  ++num_open_;
  if (connection.num_open > options_.most_open_of_connection) return id;
  if (num_open_ > options_.most_open) return Largest();
  return std::nullopt;
}

void StreamLimits::CountEnded(Id id) {
  Connection& connection = connections_.at(id);
  BATON_CHECK(connection.num_open > 0);
  --connection.num_open;
  --num_open_;
}

void StreamLimits::CountReset(Id id, Time now) {
  CountEnded(id);
  connections_.at(id).resets.Add(1, kForgottenPerS, now);
  debt_.Add(1, options_.digested_per_s, now);
}

StreamLimits::Id StreamLimits::Largest() const {
  std::map<std::string, int64_t> open_of;
  for (const auto& [id, connection] : connections_) {
    open_of[connection.network] += connection.num_open;
  }
  const auto largest = std::max_element(
      connections_.begin(), connections_.end(), [&open_of](const auto& a, const auto& b) {
        return std::pair(open_of[a.second.network], a.second.num_open) <
               std::pair(open_of[b.second.network], b.second.num_open);
      });
  return largest->first;
}

}  // namespace baton
