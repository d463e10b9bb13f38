#pragma once

#include <cstdint>

#include "common/base/ids.h"
#include "common/kv_cache/kv_heads.h"
#include "kernels/api/model_args.h"

// A handoff between workers of several tensor-parallel ranks is one transfer, a leg, from each rank
// of the sender into each rank of the receiver that has something to get from it. All of this is
// arithmetic that both sides do alike.
namespace baton {

// One rank of a group of `size`.
struct RankPlace {
  int32_t rank = 0;
  int32_t size = 1;
  bool operator==(const RankPlace&) const = default;
};

// A handoff's ticket has zeros in its low bits; those of a leg say which rank receives it.
TicketId LegOf(TicketId handoff, int32_t receiver_rank);
TicketId HandoffOf(TicketId leg);
int32_t ReceiverOf(TicketId leg);

// Whether a group of so many ranks can hold so many heads, so that HeadsOf answers for each of it.
bool CanHold(int32_t size, int32_t kv_heads);

// The place is one, and its group can hold the heads.
bool CanHold(RankPlace place, int32_t kv_heads);

// The heads that `sender` sends to `receiver`; count is 0 when there are none. Each head of the
// receiver comes from one rank, also where several hold it, and those that do share the work. Both
// can hold the heads.
HeadRange Sent(RankPlace sender, RankPlace receiver, int32_t kv_heads);

// Bit p: rank p of a group of `sender_size` sends something to `receiver`. Never 0.
uint32_t SendersTo(RankPlace receiver, int32_t sender_size, int32_t kv_heads);

}  // namespace baton
