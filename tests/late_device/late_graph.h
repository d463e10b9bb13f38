#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "tests/late_device/late_device.h"

namespace baton {

// A part of each device that takes part, the first that of who captures and launches.
struct LateDevice::LateGraph : public Graph {
  struct PartWork {
    std::function<void()> run = nullptr;  // Null: only waits, for so many works of a part.
    size_t of = 0;
    uint64_t count = 0;
  };
  struct Part {
    LateDevice* device;
    std::vector<PartWork> works = {};
  };
  std::vector<Part> parts;
  std::map<size_t, uint64_t> joined;  // How many works of each the first has waited for.
};

}  // namespace baton
