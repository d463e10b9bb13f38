#pragma once

#include <cstdint>

#include "common/base/time.h"

namespace baton {

// The machine's clocks, read here and nowhere else. For the edges and for those who drive a node or
// connections: what decides gets the time as an argument.
Time SteadyNow();

// Wall time, for what is shown to people and clients only.
int64_t UnixSeconds();

}  // namespace baton
