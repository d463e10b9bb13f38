#pragma once

#include <cstdint>

namespace baton {

// 64 bits from the operating system, to seed a service's generator. The only non-reproducible
// draw of the router's text layer; tests pass a constant instead.
uint64_t RandomSeed();

}  // namespace baton
