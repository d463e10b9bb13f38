#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/time.h"

namespace baton {

// A stream costs the gRPC library some 28 KB until its call is over, a while after its reset. The
// library was seen to end 5,000 a second on two busy cores.
inline constexpr int kMostDebt = 4000;
inline constexpr int kDigestedPerS = 1000;
inline constexpr int kMostOpenStreams = 16384;

struct StreamLimitsOptions {
  int most_debt = kMostDebt;
  double digested_per_s = kDigestedPerS;
  int64_t most_open = kMostOpenStreams;  // Of all connections.
  // Of one: twice what the server announces (100), for a client that has not read that yet.
  int64_t most_open_of_connection = 200;
};

// What the library may hold for clients: the streams that are open, and a debt: those that ended
// otherwise than by an answer, which runs out as the library is known to get over them. While the
// debt is above its limit, streams are opened no faster than that, and whoever has reset fewest
// opens first. So the sum of both is bounded, a flood slowed, and nobody closed for it; whoever
// resets streams never waits for that. Not thread-safe.
class StreamLimits {
 public:
  using Id = uint64_t;  // Of a connection.

  explicit StreamLimits(StreamLimitsOptions options = {}) : options_(options) {}

  // A connection, until Remove. Its open streams go to the debt then. If it is there. What those of
  // its network that have gone had reset counts for its place: whoever comes back is not new.
  void Add(Id id, const std::string& network, Time now);
  void Remove(Id id, Time now);

  // Whether it opens a stream now. If not it waits, until Next returns it, or Remove.
  bool MayOpen(Id id, Time now);
  // Who waited longest of those that have reset fewest, if one may open now.
  std::optional<Id> Next(Time now);
  bool has_waiting() const { return num_waiting_ > 0; }

  // It has opened a stream: which connection has to go for that, if one does: itself beyond its own
  // limit, and beyond that of all the largest of the network that has most.
  std::optional<Id> CountOpened(Id id);
  // A stream of it was answered to its end; or not.
  void CountAnswered(Id id) { CountEnded(id); }
  void CountReset(Id id, Time now);

  int64_t num_open() const { return num_open_; }
  int64_t num_open(Id id) const { return connections_.at(id).num_open; }
  double Debt(Time now) const { return debt_.At(options_.digested_per_s, now); }

 private:
  struct Level {  // Runs out as time goes on.
    double value = 0;
    Time at{};
    double At(double per_s, Time now) const;
    void Add(double count, double per_s, Time now);
  };
  struct Connection {
    std::string network;
    int64_t num_open = 0;
    Level resets;
    Level resets_before;       // Of its network, by those that had gone.
    uint64_t waits_since = 0;  // 0: it does not.
  };

  void CountEnded(Id id);
  void Remember(const std::string& network, double resets, Time now);
  bool TakeTurn(Time now);
  Id Largest() const;

  const StreamLimitsOptions options_;
  std::map<Id, Connection> connections_;
  std::map<std::string, Level> resets_of_gone_;  // By network.
  Level debt_;
  Time next_turn_{};  // While the debt is above its limit.
  int64_t num_open_ = 0;
  int num_waiting_ = 0;
  uint64_t last_wait_ = 0;
};

}  // namespace baton
