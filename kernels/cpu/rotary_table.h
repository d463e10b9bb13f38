#pragma once

#include <cstdint>

#include "kernels/api/row_args.h"

namespace baton {

// Tokens [begin, end) of the table.
void FillRotaryTable(const RotaryTableArgs& args, int64_t begin, int64_t end);

}  // namespace baton
