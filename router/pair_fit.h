#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/node/message.h"

// Which workers go together, by what they say of themselves.
namespace baton {

// Workers recover for each other only within one group: all that makes the bits. Releases that
// speak to the router in different ways may be of one.
uint64_t GroupOf(const HelloInfo& hello);

// And exchange K/V only where their frames are the same, what these bring of each layer, and how
// their connections are secured.
uint64_t PairOf(const HelloInfo& hello);

// Why two of one group exchange no K/V, with the cure; empty: they do.
std::string WhyNoPair(const HelloInfo& prefill, const HelloInfo& decode);

// What secures the K/V connections of such a worker, as --kv-security says it.
const char* KvSecurityOf(const HelloInfo& hello);

// Whether a worker at this address ("host:port") has TLS there if nothing else is said: what one
// that does not tell has, which is of the release before.
bool DefaultKvTls(absl::string_view address);

}  // namespace baton
