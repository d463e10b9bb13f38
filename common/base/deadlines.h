#pragma once

#include <optional>
#include <set>
#include <utility>

#include "common/base/time.h"

namespace baton {

// The deadlines of a node's live keys, soonest first.
template <typename Key>
class Deadlines {
 public:
  void Set(const Key& key, Time at) { items_.emplace(at, key); }
  void Clear(const Key& key, Time at) { items_.erase({at, key}); }
  Time Next() const { return items_.empty() ? kNever : items_.begin()->first; }
  // A key whose deadline has come; it stays until cleared.
  std::optional<Key> Expired(Time now) const {
    if (items_.empty() || items_.begin()->first > now) return std::nullopt;
    return items_.begin()->second;
  }

 private:
  std::set<std::pair<Time, Key>> items_;
};

}  // namespace baton
