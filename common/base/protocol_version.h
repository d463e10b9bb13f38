#pragma once

#include <cstdint>

namespace baton {

// Of the messages between routers and workers: of two the one with the later protocol speaks the
// other's, if that is the one before its own. In a source of its own, so that tests can have
// programs of the next release.
extern const int32_t kProtocolVersion;
int32_t OldestSpoken();

// Of the frames that carry K/V from worker to worker: only equal ones pair. Routers of protocol 3
// do not look at it: it changes no sooner than they are gone, which is with protocol 5.
extern const int32_t kKvWireVersion;
inline constexpr int32_t kKvWireOfProtocol3 = 2;  // Whose workers do not tell it.

}  // namespace baton
