#include "tests/bench/measure.h"

#include <algorithm>

namespace baton::bench {
namespace {

struct Least {
  double seconds = 0;
  bool computes = false;  // The operations take it, not the bytes.
};

Least LeastSeconds(const Work& work, bool bf16, MachineRoofs& roofs) {
  const double compute = work.ops > 0 ? work.ops / (roofs.ProductGigaOps(bf16) * 1e9) : 0;
  const double read = work.bytes > 0 ? work.bytes / (roofs.ReadGigabytes() * 1e9) : 0;
  return {.seconds = std::max(compute, read), .computes = compute >= read};
}

}  // namespace

Row MeasureBesideRoof(const Work& work, int repeats, bool bf16, MachineRoofs& roofs) {
  Row best;
  Least before = LeastSeconds(work, bf16, roofs);
  for (int i = 0; i < repeats; ++i) {
    const double seconds = work.seconds();
    const Least after = LeastSeconds(work, bf16, roofs);
    const Least least = before.seconds < after.seconds ? before : after;
    before = after;
    if (best.roof > 0 && least.seconds / seconds <= best.value / best.roof) continue;
    const double amount =
        work.tokens > 0 ? work.tokens : (least.computes ? work.ops : work.bytes) * 1e-9;
    best = {.value = amount / seconds,
            .unit = work.tokens > 0  ? "tok/s"
                    : least.computes ? "Gop/s"
                                     : "GB/s",
            .roof = amount / least.seconds,
            .roof_name = least.computes ? "product peak" : "read bandwidth",
            .seconds = seconds,
            .ops = work.ops,
            .bytes = work.bytes};
  }
  best.name = work.name;
  return best;
}

}  // namespace baton::bench
