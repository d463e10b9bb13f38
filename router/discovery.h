#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/rpc/worker_links.h"
#include "router/dns_name.h"

namespace baton {

struct DiscoveryOptions {
  struct Name {
    Role role = Role::kPrefill;  // What its addresses are.
    DnsName dns;
  };
  std::vector<Name> names;
  std::vector<WorkerAddress> fixed;  // The static list: there already, never forgotten.
  bool only_loopback = false;        // Other addresses are no answer: there is no TLS.
  ResolveHost resolve = SystemResolveHost;
  std::function<Time()> clock;
  uint64_t random_seed = 0;
  Duration interval = std::chrono::seconds(2);  // Between two lookups of a name, +-20%.
};

// Looks names up again and again, on a thread of its own, and keeps a router's workers by what
// comes (WorkerRoster). A failed lookup, an empty answer included, changes nothing; it is counted,
// and logged when it is another failure than the last.
class Discovery {
 public:
  // `workers` is not used after Stop.
  Discovery(DiscoveryOptions options, WorkerSet* workers);
  ~Discovery();  // Stops.

  void Start();  // No thread without names.

  // Does not wait for a lookup that blocks: its thread is left behind and touches nothing more.
  void Stop();

  struct NameStats {
    std::string name;  // "NAME:PORT".
    Role role = Role::kPrefill;
    int64_t good = 0;         // Lookups.
    int64_t failed = 0;
    int64_t addresses = 0;    // In the last good answer.
    int64_t left_out = 0;     // Of those, beyond the caps.
  };
  std::vector<NameStats> Stats() const;  // Any thread.

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // Shared with the thread, which may outlive this.
};

}  // namespace baton
