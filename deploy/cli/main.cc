#include "deploy/cli/command_line.h"

int main(int argc, char** argv) { return baton::cli::RunCommandLine(argc, argv); }
