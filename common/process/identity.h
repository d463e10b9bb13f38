#pragma once

#include <cstdint>

#include "common/base/ids.h"

namespace baton {

// 64 bits of the operating system's randomness. Ends the process if it has none.
uint64_t SystemRandom64();

// A new process's id: random, never 0.
Incarnation NewIncarnation();

// A new ticket: 128 random bits, never all zero.
TicketId NewTicket();

}  // namespace baton
