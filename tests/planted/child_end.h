#pragma once

#include <sys/wait.h>

#include <csignal>

namespace baton {

// What the end of a child says about the bug that was switched on in it: caught if the child exited
// with the code that tells of a failed expectation, failed a CHECK, or touched memory that is not
// there. A child that was ended for its time or its memory, or by anything else, caught nothing.
inline bool IsCatch(int wait_status, int failed_exit_code) {
  if (WIFEXITED(wait_status)) return WEXITSTATUS(wait_status) == failed_exit_code;
  return WIFSIGNALED(wait_status) &&
         (WTERMSIG(wait_status) == SIGABRT || WTERMSIG(wait_status) == SIGSEGV);
}

}  // namespace baton
