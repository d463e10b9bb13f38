#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/transport/nccl/nccl_abi.h"

namespace baton::nccl {

// What is opened unless the environment names a file.
inline constexpr absl::string_view kLibrary = "libnccl.so.2";
inline constexpr const char* kLibraryVariable = "BATON_NCCL_LIBRARY";

// Of $BATON_NCCL_LIBRARY, or else kLibrary, which the loader looks up.
std::string LibraryPath();

// "2.18.3"; versions of different numbers do not talk to each other.
std::string VersionText(int version);

// NCCL, opened at run time. Communicators have two ranks and never block: what a call has begun is
// over when AsyncState says so. Errors have NCCL's own text of the call and of the last error:
// UNAVAILABLE of the peer, the network or a GPU, INVALID_ARGUMENT and FAILED_PRECONDITION of calls
// that Baton should not have made, INTERNAL of NCCL itself.
//
// Threads: any may call, but a communicator belongs to one at a time, Abort included; nothing here
// has locks. The library is never closed: a thread of it, or one in a call, may be left behind.
class Library {
 public:
  // NOT_FOUND: no such library; FAILED_PRECONDITION: older than 2.18, or not NCCL. Reads no GPU.
  static absl::StatusOr<std::unique_ptr<Library>> Open(const std::string& path = LibraryPath());
  // The same of entry points that are there already; `path` says whose.
  static absl::StatusOr<std::unique_ptr<Library>> Of(std::string path, const EntryPoints& entries);

  int version() const { return version_; }
  const std::string& path() const { return path_; }

  // Costs a thread and a port of this process until both ranks have come.
  absl::StatusOr<UniqueId> MakeUniqueId() const;

  // Begins a communicator of two on the calling thread's GPU. It is there when AsyncState says so,
  // or never, and is to be aborted in each case.
  absl::StatusOr<Comm*> Init(const UniqueId& id, int rank) const;

  // True: all calls on the communicator so far have taken effect, which for Send and Receive means
  // that they are on their stream: an event behind them is made from now on. False: still under
  // way; Send and Receive are refused until then. An error is for ever, and may come at any time.
  absl::StatusOr<bool> AsyncState(Comm* comm) const;

  // To or from the other rank of the pair, as many bytes as the other one says, in the same order.
  // Enqueued on `stream`, a cudaStream_t, which stands still until the other has come.
  absl::Status Send(Comm* comm, int peer, const void* data, size_t bytes, void* stream) const;
  absl::Status Receive(Comm* comm, int peer, void* data, size_t bytes, void* stream) const;

  // What this thread does between them begins together, as one work of the stream.
  absl::Status GroupStart() const;
  absl::Status GroupEnd() const;

  // Ends what the communicator has on streams, and frees it, whatever is said. May not return.
  absl::Status Abort(Comm* comm) const;

 private:
  Library(std::string path, const EntryPoints& entries, int version)
      : path_(std::move(path)), entries_(entries), version_(version) {}

  // OK of kInProgress too.
  absl::Status ToStatus(Result result, absl::string_view call, Comm* comm) const;

  const std::string path_;
  const EntryPoints entries_;
  const int version_;
};

}  // namespace baton::nccl
