#pragma once

#include "common/base/time.h"

namespace baton::cli {

// The machine's steady clock. The command line tool is an edge: it may read the clock, and only
// here.
Time Now();

}  // namespace baton::cli
