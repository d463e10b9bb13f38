#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/random_model.h"
#include "tests/bench/report.h"

namespace baton::bench {

// What a load to a GPU does on the host: random weights of that shape, from the page cache, hashed
// and as rows in host memory. No GPU is asked.
absl::StatusOr<std::vector<Row>> HostLoadRows(const ModelShape& shape);

}  // namespace baton::bench
