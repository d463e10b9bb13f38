#pragma once

namespace baton::cli {

// Parses the command line of `baton` and runs the command it names. The exit code: 0 well, 1 the
// command failed, 2 the command line is wrong.
int RunCommandLine(int argc, char** argv);

}  // namespace baton::cli
