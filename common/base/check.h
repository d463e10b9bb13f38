#pragma once

#include <cstdio>
#include <cstdlib>

// Ends the process with file, line and condition when `condition` is false. For our own bugs only:
// anything that a client, a peer or a file can cause is an absl::Status.
#define BATON_CHECK(condition)                                                                \
  do {                                                                                        \
    if (!(condition)) [[unlikely]] {                                                          \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition);      \
      std::abort();                                                                           \
    }                                                                                         \
  } while (false)
