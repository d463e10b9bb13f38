#pragma once

#include <cstddef>

namespace baton::emulation {

// A stack with a suspended computation. Switching costs some ten nanoseconds; what a switch leaves
// alone is the floating-point control word, which nothing here changes.
class Fiber {
 public:
  static constexpr size_t kStackBytes = 128 << 10;

  Fiber() = default;  // Stands for the stack of whoever switches away first.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // entry() runs at the next switch here, and never returns. May be called again, which abandons
  // what ran before; `reserved` bytes at the top of the stack stay untouched.
  void Start(void (*entry)(), size_t reserved);

  void SwitchTo(Fiber& next);

  std::byte* stack() const { return stack_; }

 private:
  void* stack_pointer_ = nullptr;
  std::byte* stack_ = nullptr;  // [kStackBytes], a guard page below; null: not its own.
};

}  // namespace baton::emulation
