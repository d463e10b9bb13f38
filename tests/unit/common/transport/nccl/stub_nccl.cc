#include "tests/unit/common/transport/nccl/stub_nccl.h"

#include <cstdint>
#include <cstring>

using baton::nccl::Comm;
using baton::nccl::Config;
using baton::nccl::Result;
using baton::nccl::Stub;
using baton::nccl::UniqueId;

extern "C" {

Stub stub_nccl;

}  // extern "C"

namespace {

Comm* const kComm = reinterpret_cast<Comm*>(uintptr_t{0x1000});

std::string Text(const void* value) {
  return std::to_string(reinterpret_cast<uintptr_t>(value));
}

Result Called(const std::string& call) {
  stub_nccl.calls.push_back(call);
  return stub_nccl.result;
}

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
  *version = stub_nccl.version;
  return stub_nccl.version_result;
}

Result ncclGetUniqueId(UniqueId* id) {
  std::memset(id->bytes, 'u', sizeof(id->bytes));
  return Called("GetUniqueId");
}

Result ncclCommInitRankConfig(Comm** comm, int size, UniqueId id, int rank, Config* config) {
  stub_nccl.config = *config;
  if (stub_nccl.result == Result::kSuccess || stub_nccl.result == Result::kInProgress) {
    *comm = kComm;
  }
  return Called("Init " + std::to_string(size) + " " + id.bytes[127] + " " + std::to_string(rank));
}

Result ncclCommGetAsyncError(Comm* comm, Result* error) {
  *error = stub_nccl.async;
  return Called("GetAsyncError " + Text(comm));
}

Result ncclCommAbort(Comm* comm) { return Called("Abort " + Text(comm)); }
const char* ncclGetErrorString(Result result) {
  return result == Result::kRemoteError ? "remote error" : "an error";
}
const char* ncclGetLastError(Comm* comm) {
  if (stub_nccl.result == Result::kSuccess) Called("GetLastError " + Text(comm));
  return stub_nccl.last_error;
}
Result ncclGroupStart() { return Called("GroupStart"); }
Result ncclGroupEnd() { return Called("GroupEnd"); }

Result ncclSend(const void* data, size_t count, int type, int peer, Comm* comm, void* stream) {
  return Called("Send " + Text(data) + " " + std::to_string(count) + " " + std::to_string(type) +
                " " + std::to_string(peer) + " " + Text(comm) + " " + Text(stream));
}

Result ncclRecv(void* data, size_t count, int type, int peer, Comm* comm, void* stream) {
  return Called("Recv " + Text(data) + " " + std::to_string(count) + " " + std::to_string(type) +
                " " + std::to_string(peer) + " " + Text(comm) + " " + Text(stream));
}

}  // extern "C"
