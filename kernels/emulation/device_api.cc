// What CUDA says of devices and of errors.

#include <cstring>
#include <string>

#include "kernels/emulation/cuda_api.h"
#include "kernels/emulation/emulated_device.h"
#include "kernels/emulation/options.h"

using baton::emulation::Architecture;  // NOLINT
using baton::emulation::Call;
using baton::emulation::OptionsOfEnvironment;
using baton::emulation::TheDevice;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = OptionsOfEnvironment().devices;
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return cudaErrorInvalidDevice;
  Call api;
  const bool hopper = api.device.architecture == Architecture::kHopper;
  *properties = {};
  const bool too_old = OptionsOfEnvironment().too_old;
  const char* usual = hopper ? "emulated sm_90" : "emulated sm_80";
  std::strcpy(properties->name, too_old ? "emulated sm_75" : usual);
  std::memcpy(properties->uuid.bytes, properties->name, sizeof(properties->uuid.bytes));
  properties->totalGlobalMem = api.device.global.capacity();
  properties->major = too_old ? 7 : hopper ? 9 : 8;
  properties->minor = too_old ? 5 : 0;
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
    case cudaErrorLaunchFailure: {
      // A device says no more than that a launch failed; the emulation knows why.
      static thread_local std::string message;
      message = TheDevice().message();
      return message.empty() ? "unspecified launch failure" : message.c_str();
    }
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    default:
      return "invalid argument";
  }
}
