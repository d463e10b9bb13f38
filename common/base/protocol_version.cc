#include "common/base/protocol_version.h"

#include <algorithm>

// 1 in the programs of tests/cluster/releases_test.py, which stand for the next release.
#ifndef BATON_NEXT_RELEASE
#define BATON_NEXT_RELEASE 0
#endif

namespace baton {

const int32_t kProtocolVersion = 4 + BATON_NEXT_RELEASE;
const int32_t kKvWireVersion = 2 + BATON_NEXT_RELEASE;

// Of those before 3 nothing was recorded.
int32_t OldestSpoken() { return std::max(3, kProtocolVersion - 1); }

}  // namespace baton
