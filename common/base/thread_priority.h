#pragma once

namespace baton {

// Adds `nice` >= 0 to the niceness of the calling thread, to 19 at most, so that others on the same
// cores come first. For good: lowering it again may be forbidden. Does nothing where niceness
// belongs to the process.
void LowerThreadPriority(int nice);

}  // namespace baton
