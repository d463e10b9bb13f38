#pragma once

namespace baton {

// What a table of open calls to workers needs of each. Thread-safe.
class OpenCall {
 public:
  virtual ~OpenCall() = default;
  virtual void Cancel() = 0;
  // Cancels it; closes as UNAVAILABLE.
  virtual void GiveUp() = 0;
  // Counts one more sweep without a sign of life; after too many of them the call is given up.
  virtual void Sweep() = 0;
};

}  // namespace baton
