#include "common/rpc/session.h"

#include "absl/strings/str_cat.h"

namespace baton {

absl::Status SessionInput::CheckNumber(uint64_t number) {
  if (number == number_ + 1) {
    ++number_;
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("message ", number, " came where ", number_ + 1, " was to come"));
}

}  // namespace baton
