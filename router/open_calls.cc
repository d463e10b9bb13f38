#include "router/open_calls.h"

#include <utility>

#include "common/base/check.h"

namespace baton {

CallId OpenCalls::New(const SequenceState& sequence, SequenceState::Side& side) {
  BATON_CHECK(side.call == 0 && side.worker >= 0);
  BATON_CHECK(owners_.emplace(next_, sequence.id.counter).second);
  return side.call = next_++;
}

std::optional<uint64_t> OpenCalls::OwnerOf(CallId call) const {
  const auto it = owners_.find(call);
  if (it == owners_.end()) return std::nullopt;
  return it->second;
}

void OpenCalls::End(SequenceState::Side& side) {
  BATON_CHECK(owners_.erase(std::exchange(side.call, 0)) == 1);
}

void OpenCalls::Drop(SequenceState::Side& side) {
  directory_.Release(side);
  if (side.call == 0) return;
  BATON_CHECK(owners_.erase(side.call) == 1);
  outbox_.Cancel(std::exchange(side.call, 0));
}

}  // namespace baton
