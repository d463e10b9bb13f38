#pragma once

#include <string_view>

// Named moments at which a test makes a process die, stop or drain. Only the sanitizer builds have
// them (BATON_FAIL_POINTS); elsewhere the macro and the names compile to nothing, and
// tests/cluster/release_test.py looks.
//
//   BATON_FAIL_POINT=name:action:count   at the count-th pass of `name` (from 1), once:
//                                        kill = SIGKILL, stop = SIGSTOP, term = SIGTERM to itself;
//                                        hang = the thread that passes goes no further
//   BATON_FAIL_LOG=file                  gets the line "name action pid" before that
//
// Names are ROLE.MOMENT: ROLE is prefill, decode or router; MOMENT is queued, prefilling,
// transferring, decoding or finishing. Of the ranks of a worker: rank.exchange, a rank comes to a
// meeting of its group, and rank.layer, it has a layer's K/V enqueued.
#ifdef BATON_FAIL_POINTS
#define BATON_FAIL_POINT(name) ::baton::PassFailPoint(name)
#else
#define BATON_FAIL_POINT(name) static_cast<void>(0)
#endif

namespace baton {

// Any thread. Ends the process with code 2 when the environment is not as above: a test that asks
// for a fault must not go on without it.
void PassFailPoint(std::string_view name);

}  // namespace baton
