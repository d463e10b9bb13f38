#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"

namespace baton {

// Brings the pages of `bytes`, of a mapped file or of memory, before this process at once, so that
// who reads them next stops at none. DATA_LOSS: some cannot be read, as where a file has become
// shorter since it was mapped; reading them would end the process. A kernel that cannot do it
// (Linux before 5.14) leaves it to who reads.
absl::Status TouchPages(std::span<const std::byte> bytes);

}  // namespace baton
