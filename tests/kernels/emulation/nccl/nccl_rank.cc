// A process with an emulated GPU that is one rank of a pair: it does what the lines of its standard
// input say, and answers each by a line.
//
//   id                an id, in hexadecimal
//   init ID RANK      begins a communicator
//   ready             waits until all calls so far have taken effect: "ready", or the error
//   send BYTES SEED   begins to send such bytes; receive BYTES SEED: to receive them
//   done              waits for what was begun: "right", "wrong", or the error
//   abort             of the communicator
//   left              open files and threads of this process

#include <chrono>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/transport/nccl/nccl_library.h"
#include "kernels/api/device.h"
#include "kernels/emulation/cuda_api.h"
#include "kernels/emulation/emulator.h"

namespace {

using baton::nccl::Comm;
using baton::nccl::Library;
using baton::nccl::UniqueId;

constexpr baton::Duration kLimit = std::chrono::seconds(60);

class Rank {
 public:
  explicit Rank(std::unique_ptr<Library> library) : library_(std::move(library)) {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
    baton::emulation::StartDriver();
  }

  absl::StatusOr<std::string> Do(const std::string& verb) {
    if (verb == "id") return MakeId();
    if (verb == "init") return Init();
    if (verb == "ready") return Ready();
    if (verb == "send" || verb == "receive") return Begin(verb == "send");
    if (verb == "done") return Done();
    if (verb == "abort") return Abort();
    if (verb == "left") return Left();
    return absl::InvalidArgumentError(verb);
  }

 private:
  absl::StatusOr<std::string> MakeId() {
    ASSIGN_OR_RETURN(const UniqueId id, library_->MakeUniqueId());
    return absl::BytesToHexString({id.bytes, sizeof(id.bytes)});
  }

  absl::StatusOr<std::string> Init() {
    std::string text;
    std::cin >> text >> rank_;
    UniqueId id;
    absl::HexStringToBytes(text).copy(id.bytes, sizeof(id.bytes));
    ASSIGN_OR_RETURN(comm_, library_->Init(id, rank_));
    return "ok";
  }

  absl::StatusOr<std::string> Ready() {
    RETURN_IF_ERROR(
        baton::WaitUntil("the pair", kLimit, [&] { return library_->AsyncState(comm_); }));
    return "ready";
  }

  absl::StatusOr<std::string> Begin(bool sends) {
    size_t bytes;
    unsigned seed;
    std::cin >> bytes >> seed;
    expected_.resize(bytes);
    for (size_t i = 0; i < bytes; ++i) expected_[i] = static_cast<char>(i * 7 + i / 251 + seed);
    cudaMalloc(&slot_, bytes);
    if (sends) {
      cudaMemcpy(slot_, expected_.data(), bytes, cudaMemcpyDefault);
      RETURN_IF_ERROR(library_->Send(comm_, 1 - rank_, slot_, bytes, stream_));
    } else {
      RETURN_IF_ERROR(library_->Receive(comm_, 1 - rank_, slot_, bytes, stream_));
    }
    RETURN_IF_ERROR(Ready().status());
    cudaEventRecord(event_, stream_);
    return "ok";
  }

  absl::StatusOr<std::string> Done() {
    RETURN_IF_ERROR(baton::WaitUntil("the GPU", kLimit, [&]() -> absl::StatusOr<bool> {
      RETURN_IF_ERROR(library_->AsyncState(comm_).status());
      const cudaError_t error = cudaEventQuery(event_);
      if (error == cudaSuccess) return true;
      if (error == cudaErrorNotReady) return false;
      return absl::InternalError(cudaGetErrorString(error));
    }));
    std::vector<char> bytes(expected_.size());
    cudaMemcpy(bytes.data(), slot_, bytes.size(), cudaMemcpyDefault);
    return bytes == expected_ ? "right" : "wrong";
  }

  absl::StatusOr<std::string> Abort() {
    RETURN_IF_ERROR(library_->Abort(comm_));
    cudaStreamSynchronize(stream_);
    return "ok";
  }

  static absl::StatusOr<std::string> Left() {
    const auto count = [](const char* folder) {
      return std::distance(std::filesystem::directory_iterator(folder), {});
    };
    return absl::StrCat(count("/proc/self/fd"), " files, ", count("/proc/self/task"), " threads");
  }

  std::unique_ptr<Library> library_;
  int rank_ = 0;
  Comm* comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void* slot_ = nullptr;
  std::vector<char> expected_;
};

}  // namespace

int main() {
  absl::StatusOr<std::unique_ptr<Library>> library = Library::Open(BATON_EMULATED_NCCL_LIBRARY);
  if (!library.ok()) {
    std::cerr << library.status() << "\n";
    return 1;
  }
  Rank rank(*std::move(library));
  std::string verb;
  while (std::cin >> verb) {
    const absl::StatusOr<std::string> answer = rank.Do(verb);
    std::cout << (answer.ok() ? *answer : answer.status().ToString()) << std::endl;
  }
  return 0;
}
