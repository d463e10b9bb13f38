#include "common/process/identity.h"

#include <sys/random.h>

#include "common/base/check.h"

namespace baton {

uint64_t SystemRandom64() {
  uint64_t bits = 0;
  // Requests of up to 256 bytes are neither cut short nor interrupted.
  BATON_CHECK(getrandom(&bits, sizeof(bits), 0) == sizeof(bits));
  return bits;
}

Incarnation NewIncarnation() {
  for (;;) {
    if (const Incarnation incarnation = SystemRandom64(); incarnation != 0) return incarnation;
  }
}

TicketId NewTicket() {
  for (;;) {
    const TicketId ticket{.hi = SystemRandom64(), .lo = SystemRandom64() & ~TicketId::kRankBits};
    if (!ticket.empty()) return ticket;
  }
}

}  // namespace baton
