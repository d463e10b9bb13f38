#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/time.h"

namespace baton {

// A stream costs the gRPC library some 28 KB until its call is over, a while after its reset. The
// library was seen to end 5,000 a second on two busy cores.
inline constexpr int kConnectionBurst = 1000;
inline constexpr int kConnectionPerS = 200;
inline constexpr int kClientBurst = 2000;
inline constexpr int kClientPerS = 400;
inline constexpr int kTotalBurst = 4000;
inline constexpr int kTotalPerS = 1000;

// So many at once, and beside them so many in each second.
struct ResetRate {
  double burst = 0;
  double per_s = 0;
};

struct ResetLimitsOptions {
  // Of a connection; its open streams count with the burst.
  ResetRate of_connection{.burst = kConnectionBurst, .per_s = kConnectionPerS};
  ResetRate of_client{.burst = kClientBurst, .per_s = kClientPerS};  // All that an address has.
  ResetRate of_all{.burst = kTotalBurst, .per_s = kTotalPerS};
  int64_t max_open_streams = 16384;  // Of all connections.
};

// Counts the streams that clients reset, or leave open as they go, and says whose connection has to
// end for it: one that is beyond its own limit, and beyond that of a client or of all the one that
// has most. So whoever resets a few beside a flood goes on. Not thread-safe.
class ResetLimits {
 public:
  using Id = uint64_t;  // Of a connection.
  enum class Limit { kConnection, kClient, kAll };
  struct Excess {
    Id id;
    Limit limit;
  };

  explicit ResetLimits(ResetLimitsOptions options = {}) : options_(options) {}

  // A new connection, until Remove; which limit forbids one at the moment, if one does: then it is
  // not counted.
  std::optional<Limit> Add(Id id, const std::string& client, Time now);
  // So many streams more were reset, and so many are open now: which connection has to end, if one
  // does. It is to be removed before the next call.
  std::optional<Excess> Count(Id id, int64_t resets, int64_t open_streams, Time now);
  // It has ended, and its open streams with it. If it is there.
  void Remove(Id id, Time now);

  // What the owner of the connection is told.
  std::string TextOf(Limit limit) const;
  size_t num_clients() const { return clients_.size(); }

 private:
  // Runs out as time goes on, from the burst and a second's part at most: whoever is shut out is so
  // for a second behind the last, however much was left at once.
  struct Level {
    double value = 0;
    Time at{};
    void Add(double count, ResetRate rate, Time now);
    double At(double per_s, Time now) const;
  };
  struct Client {
    Level resets;
    int num_connections = 0;
  };
  struct Connection {
    std::map<std::string, Client>::iterator client;
    Level resets;
    int64_t open_streams = 0;
  };

  double Held(const Connection& connection, Time now) const;
  bool IsFull(const Client& client, Time now) const;
  bool IsFull(Time now) const;
  double ResetsOfLive(const Client* client, Time now) const;
  Id Heaviest(const Client* client, Time now) const;
  void CountFor(Client& client, double resets, Time now);
  void ForgetQuiet(Time now);

  const ResetLimitsOptions options_;
  std::map<std::string, Client> clients_;
  std::map<Id, Connection> connections_;
  Level all_;
  int64_t open_streams_ = 0;
};

}  // namespace baton
