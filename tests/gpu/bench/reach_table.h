#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::bench {

// What tests/bench/gpu_model.py computed of a card: how fast its kernels could be, each between two
// assumptions.
class ReachTable {
 public:
  // Says nothing of any work.
  ReachTable() = default;

  // Of the file that gpu_model.py --json writes: the card whose name is part of the device's. An
  // error names the file; a card that it does not have is none.
  static absl::StatusOr<ReachTable> Load(const std::string& path, absl::string_view device);

  struct Range {
    double low = 0;  // 0: nothing is known.
    double high = 0;
  };
  // Times per second that so much work could be done by the best kernel whose name begins so.
  Range PerSecond(absl::string_view family, double ops, double bytes) const;

 private:
  struct Kernel {
    std::string name;
    Range ops, bytes;  // A second; 0: not what limits it.
  };
  std::vector<Kernel> kernels_;
};

}  // namespace baton::bench
