// What CUDA says of devices and of errors.

#include <cstring>
#include <string>

#include "kernels/emulation/cuda_api.h"
#include "kernels/emulation/emulated_device.h"
#include "kernels/emulation/options.h"

using baton::emulation::Call;  // NOLINT
using baton::emulation::CurrentDevice;
using baton::emulation::OptionsOfEnvironment;
using baton::emulation::TheDevice;

namespace {

// With the queue's mutex.
bool IsDevice(int device) { return device >= 0 && device < TheDevice().devices; }

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  *count = api.device.devices;
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  const std::lock_guard lock(TheDevice().work.mutex);
  if (!IsDevice(device)) return cudaErrorInvalidDevice;
  CurrentDevice() = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = CurrentDevice();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  const std::lock_guard lock(TheDevice().work.mutex);
  if (!IsDevice(device)) return cudaErrorInvalidDevice;
  const baton::emulation::GpuModel& model = *TheDevice().models[device];
  // Few multiprocessors, so that a persistent block has several items.
  *value = attribute == cudaDevAttrMultiProcessorCount      ? 3
           : attribute == cudaDevAttrComputeCapabilityMajor ? model.major
                                                            : model.minor;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  Call api;
  if (!IsDevice(device) || !IsDevice(peer)) return cudaErrorInvalidDevice;
  *can = api.device.peers && device != peer ? 1 : 0;
  return api.error;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  Call api;
  if (api.error != cudaSuccess) return api.error;
  if (!IsDevice(peer) || peer == api.on) return cudaErrorInvalidDevice;
  if (!api.device.peers) return cudaErrorPeerAccessUnsupported;
  const std::lock_guard memory(api.device.work.running);
  if (api.device.global.HasPeer(api.on, peer)) return cudaErrorPeerAccessAlreadyEnabled;
  api.device.global.EnablePeer(api.on, peer);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  Call api;
  if (!IsDevice(device)) return cudaErrorInvalidDevice;
  const baton::emulation::GpuModel& model = *api.device.models[device];
  *properties = {};
  const std::string name = "emulated sm_" + std::string(model.name.substr(2));
  std::strcpy(properties->name, name.c_str());
  std::memcpy(properties->uuid.bytes, properties->name, sizeof(properties->uuid.bytes));
  properties->uuid.bytes[15] = static_cast<char>(device);
  properties->totalGlobalMem = api.device.global.capacity();
  properties->sharedMemPerBlockOptin = model.shared_bytes;
  properties->major = model.major;
  properties->minor = model.minor;
  return api.error;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = OptionsOfEnvironment().driver;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -1;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorPeerAccessUnsupported:
      return "peer access is not supported between these two devices";
    case cudaErrorInvalidResourceHandle:
    case cudaErrorLaunchFailure: {
      // A device says no more than that; the emulation knows why.
      static thread_local std::string message;
      message = TheDevice().message();
      return message.empty() ? "unspecified launch failure" : message.c_str();
    }
    case cudaErrorSystemNotReady:
      return "system not yet initialized";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    default:
      return "invalid argument";
  }
}
