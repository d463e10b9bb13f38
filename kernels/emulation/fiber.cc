#include "kernels/emulation/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "common/base/check.h"

#if !defined(__x86_64__)
#error "BATON_CUDA=EMULATED needs an x86-64 machine: this file switches stacks"
#endif

// void baton_emulation_switch(void** save, void* load): pushes the registers that a call preserves
// (System V ABI), and takes the stack of another that has done the same.
asm(R"(
.text
.globl baton_emulation_switch
.type baton_emulation_switch, @function
baton_emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size baton_emulation_switch, .-baton_emulation_switch
)");
extern "C" void baton_emulation_switch(void** save, void* load);

namespace baton::emulation {
namespace {
constexpr size_t kGuardBytes = 4096;
}  // namespace

Fiber::~Fiber() {
  if (stack_ != nullptr) munmap(stack_ - kGuardBytes, kStackBytes + kGuardBytes);
}

void Fiber::Start(void (*entry)(), size_t reserved) {
  if (stack_ == nullptr) {
    void* memory = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    BATON_CHECK(memory != MAP_FAILED);
    BATON_CHECK(mprotect(memory, kGuardBytes, PROT_NONE) == 0);
    stack_ = static_cast<std::byte*>(memory) + kGuardBytes;
  }
  // Six registers, the entry as the address to return to, and a word that makes the stack aligned
  // as it is behind a call.
  auto* top = reinterpret_cast<uintptr_t*>(stack_ + kStackBytes - reserved);
  top -= 8;
  std::memset(top, 0, 8 * sizeof(*top));
  top[6] = reinterpret_cast<uintptr_t>(entry);
  stack_pointer_ = top;
}

void Fiber::SwitchTo(Fiber& next) {
  baton_emulation_switch(&stack_pointer_, next.stack_pointer_);
}

}  // namespace baton::emulation
