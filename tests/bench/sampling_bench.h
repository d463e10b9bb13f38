#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/bench/report.h"

namespace baton::bench {

inline constexpr int kSampledRows = 64;

// Milliseconds to turn 64 rows of logits over a vocabulary of 151,936 into tokens, in the ways that
// requests ask for, each beside `step_seconds`: a decode step of 64 rows, measured before and after
// each repetition. The row with the best share counts.
std::vector<Row> MeasureSampling(const std::string& name, const std::string& kernels, int threads,
                                 int repeats, const std::function<double()>& step_seconds);

}  // namespace baton::bench
