#include "router/room_claims.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton {

void RoomClaims::Keep(const SequenceState& sequence, int32_t worker, Time now) {
  BATON_CHECK(worker >= 0 && sequence.decode.call == 0);
  std::erase_if(claims_, [now](const auto& claim) { return claim.second.until <= now; });
  const uint64_t counter = sequence.id.counter;
  for (const auto& [other, claim] : claims_) {
    if (claim.counter == counter && other != worker) return;
  }
  const auto it = claims_.find(worker);
  if (it != claims_.end() && it->second.counter < counter) return;
  claims_[worker] = {counter, sequence.body->priority, now + time_};
}

void RoomClaims::Release(const SequenceState& sequence) {
  std::erase_if(claims_, [counter = sequence.id.counter](const auto& claim) {
    return claim.second.counter == counter;
  });
}

bool RoomClaims::Admits(const SequenceState& sequence, int32_t worker, Time now) const {
  const auto it = claims_.find(worker);
  if (it == claims_.end() || it->second.until <= now || sequence.charged > 0) return true;
  const Claim& claim = it->second;
  return sequence.id.counter <= claim.counter || sequence.body->priority < claim.priority;
}

Time RoomClaims::NextEnd(Time now) const {
  Time next = kNever;
  for (const auto& [worker, claim] : claims_) {
    if (claim.until > now) next = std::min(next, claim.until);
  }
  return next;
}

}  // namespace baton
