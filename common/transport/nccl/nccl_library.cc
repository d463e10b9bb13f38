#include "common/transport/nccl/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace baton::nccl {
namespace {

// Few, for they are taken from the model: more than a link needs speed nothing up.
constexpr int32_t kCtas = 4;

template <typename Function>
bool Find(void* library, const char* name, Function*& entry, std::string& missing) {
  entry = reinterpret_cast<Function*>(dlsym(library, name));
  if (entry == nullptr) missing = name;
  return entry != nullptr;
}

bool FindAll(void* library, EntryPoints& entries, std::string& missing) {
  return Find(library, "ncclGetVersion", entries.GetVersion, missing) &&
         Find(library, "ncclGetUniqueId", entries.GetUniqueId, missing) &&
         Find(library, "ncclCommInitRankConfig", entries.CommInitRankConfig, missing) &&
         Find(library, "ncclCommGetAsyncError", entries.CommGetAsyncError, missing) &&
         Find(library, "ncclCommAbort", entries.CommAbort, missing) &&
         Find(library, "ncclGetErrorString", entries.GetErrorString, missing) &&
         Find(library, "ncclGetLastError", entries.GetLastError, missing) &&
         Find(library, "ncclGroupStart", entries.GroupStart, missing) &&
         Find(library, "ncclGroupEnd", entries.GroupEnd, missing) &&
         Find(library, "ncclSend", entries.Send, missing) &&
         Find(library, "ncclRecv", entries.Recv, missing);
}

absl::StatusCode CodeOf(Result result) {
  switch (result) {
    case Result::kUnhandledCudaError:
    case Result::kSystemError:
    case Result::kRemoteError:
      return absl::StatusCode::kUnavailable;
    case Result::kInvalidArgument:
      return absl::StatusCode::kInvalidArgument;
    case Result::kInvalidUsage:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

std::string LibraryPath() {
  const char* path = std::getenv(kLibraryVariable);
  return path == nullptr || *path == '\0' ? std::string(kLibrary) : path;
}

std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

absl::StatusOr<std::unique_ptr<Library>> Library::Open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::NotFoundError(dlerror());
  EntryPoints entries;
  std::string missing;
  if (!FindAll(library, entries, missing)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has no ", missing, ": not NCCL, or one before ",
                     VersionText(kOldestVersion)));
  }
  return Of(path, entries);
}

absl::StatusOr<std::unique_ptr<Library>> Library::Of(std::string path,
                                                     const EntryPoints& entries) {
  int version = 0;
  if (const Result result = entries.GetVersion(&version); result != Result::kSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " does not tell its version: ", entries.GetErrorString(result)));
  }
  if (version < kOldestVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is NCCL ", VersionText(version),
                                                      ", older than ",
                                                      VersionText(kOldestVersion)));
  }
  return std::unique_ptr<Library>(new Library(std::move(path), entries, version));
}

absl::Status Library::ToStatus(Result result, absl::string_view call, Comm* comm) const {
  if (result == Result::kSuccess || result == Result::kInProgress) return absl::OkStatus();
  const char* last = entries_.GetLastError(comm);
  return absl::Status(CodeOf(result),
                      absl::StrCat(call, ": ", entries_.GetErrorString(result),
                                   last == nullptr || *last == '\0' ? "" : ": ",
                                   last == nullptr ? "" : last));
}

absl::StatusOr<UniqueId> Library::MakeUniqueId() const {
  UniqueId id;
  RETURN_IF_ERROR(ToStatus(entries_.GetUniqueId(&id), "ncclGetUniqueId", nullptr));
  return id;
}

absl::StatusOr<Comm*> Library::Init(const UniqueId& id, int rank) const {
  Config config;
  config.blocking = 0;
  config.min_ctas = config.max_ctas = kCtas;
  Comm* comm = nullptr;
  RETURN_IF_ERROR(ToStatus(entries_.CommInitRankConfig(&comm, 2, id, rank, &config),
                           "ncclCommInitRankConfig", nullptr));
  return comm;
}

absl::StatusOr<bool> Library::AsyncState(Comm* comm) const {
  Result state = Result::kSuccess;
  RETURN_IF_ERROR(
      ToStatus(entries_.CommGetAsyncError(comm, &state), "ncclCommGetAsyncError", comm));
  RETURN_IF_ERROR(ToStatus(state, "NCCL", comm));
  return state == Result::kSuccess;
}

absl::Status Library::Send(Comm* comm, int peer, const void* data, size_t bytes,
                           void* stream) const {
  return ToStatus(entries_.Send(data, bytes, kUint8, peer, comm, stream), "ncclSend", comm);
}

absl::Status Library::Receive(Comm* comm, int peer, void* data, size_t bytes,
                              void* stream) const {
  return ToStatus(entries_.Recv(data, bytes, kUint8, peer, comm, stream), "ncclRecv", comm);
}

absl::Status Library::GroupStart() const {
  return ToStatus(entries_.GroupStart(), "ncclGroupStart", nullptr);
}

absl::Status Library::GroupEnd() const {
  return ToStatus(entries_.GroupEnd(), "ncclGroupEnd", nullptr);
}

absl::Status Library::Abort(Comm* comm) const {
  return ToStatus(entries_.CommAbort(comm), "ncclCommAbort", nullptr);
}

}  // namespace baton::nccl
