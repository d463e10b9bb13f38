#pragma once

#include <cstddef>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/api/device.h"

namespace baton {

// A copy in the device's memory, there on return. At load only. `staged` is what it goes through,
// for the next ones too: taken where there is none, or too little.
absl::StatusOr<Buffer> CopyToDevice(Device& device, std::span<const std::byte> bytes,
                                    Buffer* staged = nullptr);

}  // namespace baton
