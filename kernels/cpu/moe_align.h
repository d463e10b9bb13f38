#pragma once

#include "kernels/api/moe_args.h"

namespace baton {

// On checked arguments.
void MoeAlign(const MoeAlignArgs& args);

}  // namespace baton
