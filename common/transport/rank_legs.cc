#include "common/transport/rank_legs.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/transport/transfer_plan.h"

namespace baton {

static_assert(TicketId::kRankBits == kMaxRanks - 1);

TicketId LegOf(TicketId handoff, int32_t receiver_rank) {
  BATON_CHECK(receiver_rank >= 0 && receiver_rank < kMaxRanks);
  return {handoff.hi, handoff.lo | static_cast<uint64_t>(receiver_rank)};
}

TicketId HandoffOf(TicketId leg) { return {leg.hi, leg.lo & ~TicketId::kRankBits}; }

int32_t ReceiverOf(TicketId leg) { return static_cast<int32_t>(leg.lo & TicketId::kRankBits); }

bool CanHold(int32_t size, int32_t kv_heads) {
  return size >= 1 && size <= kMaxRanks && kv_heads >= 1 &&
         (kv_heads % size == 0 || size % kv_heads == 0);
}

bool CanHold(RankPlace place, int32_t kv_heads) {
  return CanHold(place.size, kv_heads) && place.rank >= 0 && place.rank < place.size;
}

HeadRange Sent(RankPlace sender, RankPlace receiver, int32_t kv_heads) {
  const int32_t holders = std::max(1, sender.size / kv_heads);
  if (sender.rank % holders != receiver.rank % holders) return {};
  return Intersect(HeadsOf(sender.rank, sender.size, kv_heads),
                   HeadsOf(receiver.rank, receiver.size, kv_heads));
}

uint32_t SendersTo(RankPlace receiver, int32_t sender_size, int32_t kv_heads) {
  uint32_t senders = 0;
  for (int32_t p = 0; p < sender_size; ++p) {
    if (Sent({p, sender_size}, receiver, kv_heads).count > 0) senders |= 1u << p;
  }
  return senders;
}

}  // namespace baton
