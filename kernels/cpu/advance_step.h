#pragma once

#include "kernels/api/step_args.h"

namespace baton {

// On checked arguments; in the caller's thread.
void AdvanceStep(const AdvanceStepArgs& args);

}  // namespace baton
