#pragma once

#include <string>

namespace baton::cli {

// `baton down`: asks the supervisor of the cluster in `dir` to drain and stop, and waits until it
// has ended; kills what outlives the drain's bounds. 0 also when nothing was running.
int Down(const std::string& dir);

}  // namespace baton::cli
