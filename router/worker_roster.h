#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/rpc/worker_links.h"

namespace baton {

// Decides which workers a router has, from its static list and from what names resolve to. An
// answer only adds candidates: what a worker is, and whether it is one, its Hello says. One that no
// answer names any more is forgotten once it has been silent for kForgetAfter; failed lookups say
// nothing, so they are not told here.
//
// | an address is      | until                                                                 |
// |--------------------|-----------------------------------------------------------------------|
// | unknown            | a good answer names it, and its name has less than its share: listed   |
// | listed, connecting | it says hello as a worker of its role: connected                      |
// | connected          | its connection is lost: silent                                        |
// | silent, connecting | it says hello, or for kForgetAfter it did not and no name's last good |
// |                    | answer has it: unknown; its index is free once the links let go of it |
//
// One thread at a time.
class WorkerRoster {
 public:
  static constexpr size_t kMaxWorkers = 1024;
  static constexpr Duration kForgetAfter = std::chrono::seconds(30);

  // The role of each name, and who is listed in any case. `workers` outlives this.
  WorkerRoster(std::vector<Role> names, const std::vector<WorkerAddress>& fixed,
               WorkerSet* workers);

  // `name` resolves to exactly these now, each "host:port"; at least one.
  void OnAnswer(size_t name, std::vector<std::string> addresses, Time now);

  // Addresses of the last good answer that are no candidates, as the name has its share: an equal
  // part, among names, of what the static list leaves of kMaxWorkers. So no answer, however long,
  // takes the room of another name.
  size_t num_left_out(size_t name) const { return names_[name].num_left_out; }

 private:
  using Key = std::pair<Role, std::string>;
  struct Name {
    Role role = Role::kPrefill;
    std::set<std::string> addresses;  // Of the last good answer.
    size_t num_listed = 0;            // Of the entries, those that came by this name.
    size_t num_left_out = 0;
  };
  struct Entry {
    int32_t worker = 0;
    size_t name = 0;  // The one that had it listed.
  };

  bool IsNamed(const Key& key) const;

  std::vector<Name> names_;
  const std::set<Key> fixed_;
  const size_t share_;
  WorkerSet* const workers_;
  std::map<Key, Entry> entries_;
};

}  // namespace baton
