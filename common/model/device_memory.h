#pragma once

#include <chrono>
#include <cstddef>
#include <span>

#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "kernels/api/buffer.h"
#include "kernels/api/device.h"

namespace baton {

// A device that has not ended its work after so long a time is taken for lost. Others have given
// this worker up long before.
inline constexpr Duration kDeviceLimit = std::chrono::seconds(30);

// A copy in the device's memory, there on return. At load only.
absl::StatusOr<Buffer> CopyToDevice(Device& device, std::span<const std::byte> bytes);

}  // namespace baton
