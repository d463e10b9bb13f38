#pragma once

#include "deploy/cli/launch_plan.h"

namespace baton::cli {

// `baton up`: the exit code. In the foreground it returns when the cluster has stopped, with
// --detach when it has produced a token or has failed to. 0: it serves, or was stopped as asked;
// kStartErrorExit: it does not start as it was asked to, and one line on stderr says what to
// change; 1: anything else. Unless it serves, nothing of it runs on.
int Up(UpOptions options);

}  // namespace baton::cli
