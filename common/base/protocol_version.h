#pragma once

#include <cstdint>

namespace baton {

// Of the messages between routers and workers: of two the one with the later protocol speaks the
// other's, if that is the one before its own. In a source of its own, so that tests can have
// programs of the next release.
extern const int32_t kProtocolVersion;
int32_t OldestSpoken();

// Workers serve routers of every protocol, so that a cluster of any release is upgraded worker by
// worker, and its routers last. Before protocol 3 a decode worker had one endpoint, and in protocol
// 1 a prompt's scores came all at once.
inline constexpr int32_t kFirstProtocolOfScores = 2;
inline constexpr int32_t kFirstProtocolOfRanks = 3;

// Of the frames that carry K/V from worker to worker: only equal ones pair. Routers of protocol 3
// do not look at it: it changes no sooner than they are gone, which is with protocol 5.
extern const int32_t kKvWireVersion;
inline constexpr int32_t kKvWireOfProtocol3 = 2;  // Whose workers do not tell it.

}  // namespace baton
