#pragma once

#include <optional>
#include <set>
#include <utility>

#include "common/base/check.h"
#include "common/base/time.h"

namespace baton {

// The deadlines of a node's live keys, soonest first.
template <typename Key>
class Deadlines {
 public:
  void Set(const Key& key, Time at) { BATON_CHECK(items_.emplace(at, key).second); }
  // Of a key that is set, with its deadline. Nothing is done for kNever, which none is.
  void Clear(const Key& key, Time at) {
    if (at != kNever) BATON_CHECK(items_.erase({at, key}) == 1);
  }
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
