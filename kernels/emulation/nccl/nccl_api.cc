// The entry points, named and typed as NCCL's, and one more for tests within one process.

#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/emulation/library_hooks.h"
#include "kernels/emulation/nccl/communicator.h"
#include "kernels/emulation/nccl/nccl_options.h"
#include "kernels/emulation/nccl/nccl_types.h"
#include "kernels/emulation/nccl/rendezvous.h"

namespace {

using baton::emulation::nccl::Communicator;
using baton::emulation::nccl::CurrentOptions;
using baton::emulation::nccl::Operation;
using baton::emulation::nccl::Options;

struct Registry {
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<Communicator>> communicators;
};
Registry& TheRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

struct GroupedCall {
  std::shared_ptr<Communicator> communicator;
  Operation operation;
  void* stream;
};
thread_local int group_depth = 0;
thread_local std::vector<GroupedCall> grouped_calls;
thread_local std::string last_error;

ncclResult_t Refuse(ncclResult_t result, const std::string& why) {
  last_error = why;
  return result;
}

std::shared_ptr<Communicator> Find(ncclComm_t comm) {
  const std::lock_guard lock(TheRegistry().mutex);
  const auto found = TheRegistry().communicators.find(comm);
  return found == TheRegistry().communicators.end() ? nullptr : found->second;
}

// A call on a communicator, which two threads must not make at once.
class Inside {
 public:
  Inside(Communicator& communicator, const char* call)
      : communicator_(communicator), other_(communicator.Enter(call)) {
    if (other_ == nullptr) return;
    Refuse(ncclInvalidUsage, std::string(call) + " while another thread is in " + other_);
  }
  ~Inside() {
    if (other_ == nullptr) communicator_.Leave();
  }
  bool is_alone() const { return other_ == nullptr; }

 private:
  Communicator& communicator_;
  const char* const other_;
};

ncclResult_t CheckConfig(const ncclConfig_t* config) {
  if (config == nullptr || config->size != sizeof(ncclConfig_t) || config->magic != 0xcafebeef ||
      config->version != 21800) {
    return Refuse(ncclInvalidArgument, "the configuration is not that of version 2.18");
  }
  if (config->blocking != 0) {
    return Refuse(ncclInvalidArgument, "the emulation has non-blocking communicators only");
  }
  return ncclSuccess;
}

ncclResult_t EnqueueAll(std::vector<GroupedCall> calls) {
  ncclResult_t result = ncclSuccess;
  while (!calls.empty()) {
    const std::shared_ptr<Communicator> communicator = calls.front().communicator;
    void* const stream = calls.front().stream;
    std::vector<Operation> operations;
    for (const GroupedCall& call : calls) {
      if (call.communicator != communicator) continue;
      if (call.stream != stream) return Refuse(ncclInvalidUsage, "two streams in one group");
      operations.push_back(call.operation);
    }
    std::erase_if(calls, [&](const GroupedCall& c) { return c.communicator == communicator; });
    const ncclResult_t one = communicator->Enqueue(std::move(operations), stream);
    if (one != ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) result = one;
  }
  return result;
}

ncclResult_t Call(const char* name, Operation operation, int type, int peer, ncclComm_t comm,
                  void* stream) {
  constexpr int kInt8 = 0;
  constexpr int kUint8 = 1;
  const std::shared_ptr<Communicator> communicator = Find(comm);
  if (communicator == nullptr) return Refuse(ncclInvalidArgument, "no such communicator");
  const Inside inside(*communicator, name);
  if (!inside.is_alone()) return ncclInvalidUsage;
  if (type != kInt8 && type != kUint8) return Refuse(ncclInvalidArgument, "bytes only");
  if (peer != 1 - communicator->rank()) return Refuse(ncclInvalidArgument, "the peer's rank");
  const ncclResult_t state = communicator->StateNow();
  if (state == ncclInProgress) {
    return Refuse(ncclInvalidUsage, std::string(name) + " while an earlier call is in progress");
  }
  if (state != ncclSuccess) return state;
  grouped_calls.push_back({communicator, operation, stream});
  return group_depth > 0 ? ncclSuccess : EnqueueAll(std::exchange(grouped_calls, {}));
}

ncclResult_t End(ncclComm_t comm) {
  const std::shared_ptr<Communicator> communicator = Find(comm);
  if (communicator == nullptr) return Refuse(ncclInvalidArgument, "no such communicator");
  const Inside inside(*communicator, "ncclCommAbort");
  if (!inside.is_alone()) return ncclInvalidUsage;
  baton::emulation::nccl::Pass("abort");
  const Options options = CurrentOptions();
  if (options.abort == Options::Abort::kSlow) {
    std::this_thread::sleep_for(std::chrono::milliseconds(options.abort_ms));
  }
  baton::emulation::nccl::WaitWhileAbortsHang();
  communicator->Abort();
  if (baton_gpu_wake != nullptr) baton_gpu_wake();
  const std::lock_guard lock(TheRegistry().mutex);
  TheRegistry().communicators.erase(comm);
  return ncclSuccess;
}

}  // namespace

#define EMULATED_NCCL_API __attribute__((visibility("default")))

extern "C" {

// Options from now on; 0: not understood.
EMULATED_NCCL_API int baton_nccl_configure(const char* text) {
  return baton::emulation::nccl::Configure(text) ? 1 : 0;
}

EMULATED_NCCL_API ncclResult_t ncclGetVersion(int* version) {
  *version = CurrentOptions().version;
  return ncclSuccess;
}

EMULATED_NCCL_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const ncclResult_t result = baton::emulation::nccl::OpenRendezvous(id);
  baton::emulation::nccl::Pass("id");
  return result;
}

EMULATED_NCCL_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id,
                                                      int rank, ncclConfig_t* config) {
  *comm = nullptr;
  if (baton_gpu_put == nullptr) {
    return Refuse(ncclUnhandledCudaError, "this program has no emulated GPU");
  }
  if (size != 2 || rank < 0 || rank > 1) return Refuse(ncclInvalidArgument, "rank 0 or 1 of 2");
  if (!baton::emulation::nccl::IsValid(id)) return Refuse(ncclInvalidArgument, "not an id");
  if (group_depth > 0) return Refuse(ncclInvalidUsage, "no communicator is made in a group");
  if (const ncclResult_t result = CheckConfig(config); result != ncclSuccess) return result;
  const auto communicator = std::make_shared<Communicator>(id, rank, baton_gpu_current());
  *comm = reinterpret_cast<ncclComm_t>(communicator.get());
  {
    const std::lock_guard lock(TheRegistry().mutex);
    TheRegistry().communicators[*comm] = communicator;
  }
  communicator->Start();
  return ncclInProgress;
}

EMULATED_NCCL_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const std::shared_ptr<Communicator> communicator = Find(comm);
  if (communicator == nullptr) return Refuse(ncclInvalidArgument, "no such communicator");
  *error = communicator->State();
  return ncclSuccess;
}

EMULATED_NCCL_API ncclResult_t ncclCommAbort(ncclComm_t comm) { return End(comm); }

EMULATED_NCCL_API const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* kTexts[] = {"no error", "CUDA's error", "system error", "internal error",
                                    "invalid argument", "invalid usage", "remote error",
                                    "in progress"};
  const auto index = static_cast<size_t>(result);
  return index < std::size(kTexts) ? kTexts[index] : "unknown error";
}

EMULATED_NCCL_API const char* ncclGetLastError(ncclComm_t comm) {
  const std::shared_ptr<Communicator> communicator = Find(comm);
  if (communicator != nullptr) {
    const std::string error = communicator->last_error();
    if (!error.empty()) last_error = error;
  }
  return last_error.c_str();
}

EMULATED_NCCL_API ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

EMULATED_NCCL_API ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return Refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  return --group_depth > 0 ? ncclSuccess : EnqueueAll(std::exchange(grouped_calls, {}));
}

EMULATED_NCCL_API ncclResult_t ncclSend(const void* data, size_t count, int type, int peer,
                                        ncclComm_t comm, void* stream) {
  auto* bytes = static_cast<std::byte*>(const_cast<void*>(data));
  return Call("ncclSend", {.sends = true, .bytes = count, .data = bytes}, type, peer, comm, stream);
}

EMULATED_NCCL_API ncclResult_t ncclRecv(void* data, size_t count, int type, int peer,
                                        ncclComm_t comm, void* stream) {
  auto* bytes = static_cast<std::byte*>(data);
  return Call("ncclRecv", {.bytes = count, .data = bytes}, type, peer, comm, stream);
}

}  // extern "C"
