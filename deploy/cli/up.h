#pragma once

#include "deploy/cli/launch_plan.h"

namespace baton::cli {

// `baton up`: the exit code. In the foreground it returns when the cluster has stopped, with
// --detach when it has produced a token or has failed to.
int Up(UpOptions options);

}  // namespace baton::cli
