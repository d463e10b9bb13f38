#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/api/device.h"

namespace baton {

// The GPU with this index. The error is one line with its cure: no driver or one too old, no such
// GPU, one before sm_80.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index);

}  // namespace baton
