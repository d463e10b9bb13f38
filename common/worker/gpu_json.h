#pragma once

#include <string>

#include "kernels/api/gpu_report.h"

namespace baton {

// One line of JSON with the fields of the report under their own names, for `baton doctor`.
std::string ToJson(const GpuReport& report);

}  // namespace baton
