#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace baton {

// gRPC runs what it calls of one call in an order, on any of its threads: everything after what
// made the call, OnReadDone after what asked for the event, OnDone after all else has returned. The
// thread sanitizer cannot see that, because the distribution's gRPC is built without it; these tell
// it, and are nothing elsewhere.
inline void ReactionBegins([[maybe_unused]] void* call) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(call);
#endif
}
inline void ReactionEnds([[maybe_unused]] void* call) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(call);
#endif
}

}  // namespace baton
