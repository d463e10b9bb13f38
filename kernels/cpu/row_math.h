#pragma once

#include "kernels/cpu/sampling/row_math.h"

namespace baton::BATON_KERNEL_SET {

const RowMath* RowMathTable();

}  // namespace baton::BATON_KERNEL_SET
