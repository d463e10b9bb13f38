// Kernel files are compiled with -fsanitize=thread but linked with this file instead of libtsan:
// the compiler calls it for every load and store. Whatever a host function of such a file does
// passes through.

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/emulation/block_runner.h"

namespace baton::emulation {
namespace {

inline void OnAccess(Access access, const void* address, size_t size, const void* caller) {
  if (!BlockRunner::watches()) return;
  TheRunner().OnAccess(access, address, size, PlaceOf(caller));
}

}  // namespace
}  // namespace baton::emulation

using baton::emulation::Access;
using baton::emulation::OnAccess;

#define BATON_HOOKS(n)                                                       \
  extern "C" void __tsan_read##n(void* p) {                                  \
    OnAccess(Access::kRead, p, n, __builtin_return_address(0));              \
  }                                                                          \
  extern "C" void __tsan_write##n(void* p) {                                 \
    OnAccess(Access::kWrite, p, n, __builtin_return_address(0));             \
  }                                                                          \
  extern "C" void __tsan_unaligned_read##n(void* p) {                        \
    OnAccess(Access::kRead, p, n, __builtin_return_address(0));              \
  }                                                                          \
  extern "C" void __tsan_unaligned_write##n(void* p) {                       \
    OnAccess(Access::kWrite, p, n, __builtin_return_address(0));             \
  }                                                                          \
  extern "C" void __tsan_volatile_read##n(void* p) {                         \
    OnAccess(Access::kRead, p, n, __builtin_return_address(0));              \
  }                                                                          \
  extern "C" void __tsan_volatile_write##n(void* p) {                        \
    OnAccess(Access::kWrite, p, n, __builtin_return_address(0));             \
  }
BATON_HOOKS(1)
BATON_HOOKS(2)
BATON_HOOKS(4)
BATON_HOOKS(8)
BATON_HOOKS(16)

extern "C" void __tsan_read_range(char* p, size_t size) {
  for (size_t i = 0; i < size; ++i) OnAccess(Access::kRead, p + i, 1, __builtin_return_address(0));
}
extern "C" void __tsan_write_range(char* p, size_t size) {
  for (size_t i = 0; i < size; ++i) OnAccess(Access::kWrite, p + i, 1, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_update(void**, void*) {}
extern "C" void __tsan_vptr_read(void**) {}

// -fsanitize=alignment: a store of 16 bytes may be split into words, of which none is misaligned.
struct MisalignedData {
  const char* file;
  uint32_t line, column;
  const void* type;
  unsigned char log_alignment, kind;
};
extern "C" void __ubsan_handle_type_mismatch_v1(MisalignedData* data, uintptr_t address) {
  if (baton::emulation::TheRunner().current() == nullptr) return;
  const std::string file = data->file;
  baton::emulation::Fail("misaligned access of " + std::to_string(1 << data->log_alignment) +
                         " B at " + file.substr(file.rfind('/') + 1) + ":" +
                         std::to_string(data->line) + ": address " + std::to_string(address % 16) +
                         " modulo 16");
}
