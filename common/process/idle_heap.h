#pragma once

#include <cstdint>

namespace baton {

// Memory of the heap that is resident and that nobody uses. After a burst the allocator keeps what
// lies between things that live on. One thread.
class IdleHeap {
 public:
  explicit IdleHeap(int64_t most_bytes) : most_bytes_(most_bytes) {}

  // Gives it back to the system if it was more than that at the look before, too, beside what could
  // not be given back; who asks for memory may then wait for some 10 ms. True if it did.
  bool Look();

 private:
  const int64_t most_bytes_;
  int64_t stays_bytes_ = 0;  // What is left of it by giving back, or less since: parts of pages.
  bool was_too_much_ = false;
};

}  // namespace baton
