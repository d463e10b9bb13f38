#include "router/front/reset_limits.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace baton {
namespace {

// Those without a connection are remembered until what they reset has run out.
constexpr size_t kMostClients = 8192;

}  // namespace

double ResetLimits::Level::At(double per_s, Time now) const {
  const double passed_s = std::chrono::duration<double>(now - at).count();
  return std::max(0.0, value - per_s * passed_s);
}

void ResetLimits::Level::Add(double count, ResetRate rate, Time now) {
  value = std::min(At(rate.per_s, now) + count, rate.burst + rate.per_s);
  at = now;
}

// In streams of which the library has something.
double ResetLimits::Held(const Connection& connection, Time now) const {
  return connection.resets.At(options_.of_connection.per_s, now) +
         static_cast<double>(connection.open_streams);
}

bool ResetLimits::IsFull(const Client& client, Time now) const {
  return client.resets.At(options_.of_client.per_s, now) > options_.of_client.burst;
}

bool ResetLimits::IsFull(Time now) const {
  return all_.At(options_.of_all.per_s, now) > options_.of_all.burst;
}

std::optional<ResetLimits::Limit> ResetLimits::Add(Id id, const std::string& client, Time now) {
  if (IsFull(now)) return Limit::kAll;
  if (clients_.size() >= kMostClients) ForgetQuiet(now);
  if (clients_.size() >= kMostClients && !clients_.contains(client)) return Limit::kAll;
  const auto of = clients_.try_emplace(client).first;
  if (IsFull(of->second, now)) return Limit::kClient;
  ++of->second.num_connections;
  const bool is_new = connections_.try_emplace(id, Connection{.client = of}).second;
  BATON_CHECK(is_new);
  return std::nullopt;
}

void ResetLimits::CountFor(Client& client, double resets, Time now) {
  client.resets.Add(resets, options_.of_client, now);
  all_.Add(resets, options_.of_all, now);
}

std::optional<ResetLimits::Excess> ResetLimits::Count(Id id, int64_t resets, int64_t open_streams,
                                                      Time now) {
  Connection& connection = connections_.at(id);
  Client& client = connection.client->second;
  open_streams_ += open_streams - connection.open_streams;
  connection.open_streams = open_streams;
  connection.resets.Add(static_cast<double>(resets), options_.of_connection, now);
  CountFor(client, static_cast<double>(resets), now);
  if (Held(connection, now) > options_.of_connection.burst) return Excess{id, Limit::kConnection};
  if (open_streams_ > options_.max_open_streams) return Excess{Heaviest(nullptr, now), Limit::kAll};
  if (resets == 0) return std::nullopt;
  // What those have reset that are gone is nobody's fault who is there.
  if (IsFull(client, now) && ResetsOfLive(&client, now) > options_.of_client.burst / 2) {
    return Excess{Heaviest(&client, now), Limit::kClient};
  }
  if (IsFull(now) && ResetsOfLive(nullptr, now) > options_.of_all.burst / 2) {
    return Excess{Heaviest(nullptr, now), Limit::kAll};
  }
  return std::nullopt;
}

// Of a client's connections; null: of all.
double ResetLimits::ResetsOfLive(const Client* client, Time now) const {
  double sum = 0;
  for (const auto& [id, connection] : connections_) {
    if (client != nullptr && &connection.client->second != client) continue;
    sum += connection.resets.At(options_.of_connection.per_s, now);
  }
  return sum;
}

ResetLimits::Id ResetLimits::Heaviest(const Client* client, Time now) const {
  Id heaviest = 0;
  double most = -1;
  for (const auto& [id, connection] : connections_) {
    if (client != nullptr && &connection.client->second != client) continue;
    if (const double held = Held(connection, now); held > most) {
      heaviest = id;
      most = held;
    }
  }
  return heaviest;
}

void ResetLimits::Remove(Id id, Time now) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  Client& client = it->second.client->second;
  CountFor(client, static_cast<double>(it->second.open_streams), now);
  open_streams_ -= it->second.open_streams;
  --client.num_connections;
  connections_.erase(it);
}

void ResetLimits::ForgetQuiet(Time now) {
  std::erase_if(clients_, [&](const auto& entry) {
    const Client& client = entry.second;
    return client.num_connections == 0 && client.resets.At(options_.of_client.per_s, now) == 0;
  });
}

std::string ResetLimits::TextOf(Limit limit) const {
  const ResetLimitsOptions& o = options_;
  const auto text = [](std::string_view whose, ResetRate rate) {
    return absl::StrFormat("too many resets: of %s at most %.0f streams at once and %.0f a second",
                           whose, rate.burst, rate.per_s);
  };
  switch (limit) {
    case Limit::kConnection:
      return text("one connection", o.of_connection);
    case Limit::kClient:
      return text("the connections of one address", o.of_client);
    case Limit::kAll:
      return text("all connections", o.of_all);
  }
  return "";
}

}  // namespace baton
