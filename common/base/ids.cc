#include "common/base/ids.h"

#include "absl/strings/str_format.h"

namespace baton {

std::string ToString(const SequenceId& id) {
  return absl::StrFormat("%016x-%d", id.router, id.counter);
}

std::string ToString(const TicketId& id) { return absl::StrFormat("%016x%016x", id.hi, id.lo); }

}  // namespace baton
