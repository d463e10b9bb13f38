#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// What the end of a call is worth. Nothing here needs the network.
namespace baton {

// The reason of a status code: "INVALID_REQUEST", "OVERLOADED", ...; never empty, and no two alike:
// it is the code once more, so that a change of either shows.
const char* ReasonOf(absl::StatusCode code);

// The end of a call as its client was told it.
struct PeerEnd {
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string message;
  std::string reason;    // The peer's own, empty if it gave none.
  bool is_late = false;  // The call's deadline is over here.
};

// A status whose reason fits its code is the peer's own word; one whose reason does not, also OK
// with a reason, was damaged on its way: DATA_LOSS. Any other was made by the library: CANCELLED,
// DEADLINE_EXCEEDED if it is late, else UNAVAILABLE; its text, which may hold addresses, is
// replaced.
absl::Status StatusOf(const PeerEnd& end);

// The end of a call was none of the peer's: what else goes over the connection is in doubt. A
// request that arrived damaged is the peer's own word, and as bad a sign.
bool IsOfTheConnection(const absl::Status& status, absl::string_view reason);

}  // namespace baton
