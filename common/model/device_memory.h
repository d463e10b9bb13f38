#pragma once

#include <cstddef>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/api/buffer.h"
#include "kernels/api/device.h"

namespace baton {

// A copy in the device's memory, there on return. At load only.
absl::StatusOr<Buffer> CopyToDevice(Device& device, std::span<const std::byte> bytes);

}  // namespace baton
