#pragma once

namespace baton {

// The bug that is switched on in the copies of the nodes that sim_planted_test links; -1: none.
inline int planted_bug = -1;
inline bool planted(int bug) { return planted_bug == bug; }

}  // namespace baton
