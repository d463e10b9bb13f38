#pragma once

#include <functional>
#include <string>

#include "tests/bench/machine_roofs.h"
#include "tests/bench/report.h"

namespace baton::bench {

// A piece of work and what it must at least do.
struct Work {
  std::string name;
  double ops = 0;                   // Of its products; a multiplication and an addition are two.
  double bytes = 0;                 // That it must read.
  double tokens = 0;                // 0: the row is in the unit of its roof, else in tok/s.
  std::function<double()> seconds;  // Does it once.
};

// Each of `repeats` repetitions stands between two measurements of the roofs, of which the higher
// counts; the repetition with the best share is the row. The roof is the longer of what the
// operations need at the peak (of bf16 products or f32 ones) and the bytes at the read bandwidth.
Row MeasureBesideRoof(const Work& work, int repeats, bool bf16, MachineRoofs& roofs);

}  // namespace baton::bench
