#pragma once

// The part of NCCL's binary interface that Baton calls, declared by ourselves: its header is not
// needed to build. Names without a prefix are ours; values and layouts are NCCL's since 2.18.

#include <climits>
#include <cstddef>
#include <cstdint>

namespace baton::nccl {

// Of a communicator, made and freed by the library.
struct Comm;

enum class Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// What makes two ranks find each other, and all that a stranger needs to join: never logged.
struct UniqueId {
  char bytes[128] = {};
};

// Of the type of elements in a message; Baton sends bytes.
inline constexpr int kUint8 = 1;

// 10000 * major + 100 * minor + patch.
inline constexpr int kOldestVersion = 21800;
inline constexpr int kUndefined = INT_MIN;

// The first 48 bytes of NCCL's configuration, as version 2.18 had it: later ones take from `size`
// and `version` that the rest is theirs to choose.
struct Config {
  size_t size = 48;
  uint32_t magic = 0xcafebeef;
  uint32_t version = kOldestVersion;
  int32_t blocking = kUndefined;
  int32_t cga_cluster_size = kUndefined;
  int32_t min_ctas = kUndefined;
  int32_t max_ctas = kUndefined;
  const char* net_name = nullptr;
  int32_t split_share = kUndefined;
};
static_assert(sizeof(Config) == 48 && offsetof(Config, net_name) == 32);

// The eleven entry points that are used, named as the library does without "nccl". Streams are
// cudaStream_t.
struct EntryPoints {
  Result (*GetVersion)(int* version);
  Result (*GetUniqueId)(UniqueId* id);
  Result (*CommInitRankConfig)(Comm** comm, int size, UniqueId id, int rank, Config* config);
  Result (*CommGetAsyncError)(Comm* comm, Result* error);
  Result (*CommAbort)(Comm* comm);
  const char* (*GetErrorString)(Result result);
  const char* (*GetLastError)(Comm* comm);
  Result (*GroupStart)();
  Result (*GroupEnd)();
  Result (*Send)(const void* data, size_t count, int type, int peer, Comm* comm, void* stream);
  Result (*Recv)(void* data, size_t count, int type, int peer, Comm* comm, void* stream);
};

}  // namespace baton::nccl
