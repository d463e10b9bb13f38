#pragma once

// NCCL's binary interface as its users see it, written down a second time: what Baton declares for
// itself (common/transport/nccl) is tested against this.

#include <cstddef>
#include <cstdint>

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};

struct ncclUniqueId {
  char internal[128];
};

struct ncclConfig_t {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
};

struct ncclComm;
using ncclComm_t = ncclComm*;
