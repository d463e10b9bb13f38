#pragma once

#include <cstdint>
#include <string>

#include "kernels/emulation/nccl/nccl_types.h"

namespace baton::emulation::nccl {

// What a rank tells when it comes.
struct Hello {
  int64_t process;
  int32_t rank;
  int32_t version;
  int32_t device;
  int32_t one_device;  // It takes a peer on its own device.
};

// Opens the place where the two ranks of a new id meet, with a thread of this process that ends
// when both have come. The place is an abstract socket, which goes with the process.
ncclResult_t OpenRendezvous(ncclUniqueId* id);
// If that is a place of this process: who still waits there hears that it is gone.
void CloseRendezvous(const ncclUniqueId& id);

bool IsValid(const ncclUniqueId& id);

// A socket connected to the place, or -1.
int ConnectTo(const ncclUniqueId& id);
// What comes back once both have come: the connection to the other rank, or -1 with the reason.
int TakeConnection(int place, std::string& refusal);

}  // namespace baton::emulation::nccl
