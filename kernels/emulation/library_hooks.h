#pragma once

// What libraries that a program opens, such as the emulated NCCL, do with its emulated GPU. They
// find these symbols in the program, or null where it has no such GPU.

#include <cstddef>

extern "C" {

// Puts work on a stream. run(context) says 0: it has ended, 1: it waits for baton_gpu_wake(), or
// else that it has failed, and the device is lost. release(context) comes last, once.
// Returns a cudaError_t.
[[gnu::weak]] int baton_gpu_put(void* stream, int (*run)(void*), void (*release)(void*),
                                void* context);
// Work that waits is asked again. Not from within run().
[[gnu::weak]] void baton_gpu_wake();
// Within run(), to or from memory of the device or the host. False: outside an allocation.
[[gnu::weak]] bool baton_gpu_copy(void* to, const void* from, size_t bytes);
// The calling thread's device.
[[gnu::weak]] int baton_gpu_current();

}  // extern "C"
