#pragma once

#include <cstdint>

#include "kernels/api/packed_matrix.h"
#include "kernels/cpu/packed_panels.h"

namespace baton {

// Copies rows [begin, end) of `part`, of to.k() columns, to rows first_row + begin and after of
// `to`, converting only where the dtypes differ (then `to` is f32). Rows of different calls may be
// written by different threads.
void PackRows(const WeightRows& part, int64_t begin, int64_t end, int64_t first_row,
              const Panels& to);

// Zeroes the rows from `first_row` to the end of the last panel.
void PackZeroRows(int64_t first_row, const Panels& to);

// Reads row `row` as floats to out[0, k).
void UnpackRow(const Panels& from, int64_t row, float* out);

}  // namespace baton
