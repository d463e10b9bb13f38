#include "kernels/emulation/library_hooks.h"

#include <cstring>
#include <memory>

#include "kernels/emulation/emulated_device.h"

using baton::emulation::Call;  // NOLINT
using baton::emulation::EmulatedDevice;
using baton::emulation::Stream;
using baton::emulation::TheDevice;

int baton_gpu_put(void* stream, int (*run)(void*), void (*release)(void*), void* context) {
  const std::shared_ptr<void> owned(context, release);
  Call api;
  if (api.error != cudaSuccess) return api.error;
  auto* queue = static_cast<Stream*>(stream);
  if (!api.device.work.Owns(queue) || api.QueueOf(queue) == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (queue->recording != nullptr) return cudaErrorStreamCaptureUnsupported;
  api.device.work.Put(queue, {.run = [run, owned] {
                        switch (run(owned.get())) {
                          case 0:
                            return cudaSuccess;
                          case 1:
                            return cudaErrorNotReady;
                          default:
                            TheDevice().FailWork("a library's work has failed");
                            return cudaErrorLaunchFailure;
                        }
                      }});
  return cudaSuccess;
}

void baton_gpu_wake() {
  const std::lock_guard lock(TheDevice().work.mutex);
  TheDevice().work.Wake();
}

bool baton_gpu_copy(void* to, const void* from, size_t bytes) {
  EmulatedDevice& device = TheDevice();
  if (!device.global.IsWithinBounds(to, bytes) || !device.global.IsWithinBounds(from, bytes)) {
    return false;
  }
  device.global.Open();
  std::memcpy(to, from, bytes);
  device.global.Close();
  return true;
}

int baton_gpu_current() { return baton::emulation::CurrentDevice(); }
