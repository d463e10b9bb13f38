#pragma once

#include "kernels/cpu/kernel_set.h"

namespace baton::BATON_KERNEL_SET {

// K and V of sequences [begin, end) out of the cache, beside each other.
void GatherKv(const UpdateKvCacheArgs& args, int64_t begin, int64_t end);

}  // namespace baton::BATON_KERNEL_SET
