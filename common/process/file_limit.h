#pragma once

#include <cstdint>

namespace baton {

// Lets this process open as many files as the system permits it without a privilege; how many that
// are.
int64_t RaiseFileLimit();

}  // namespace baton
