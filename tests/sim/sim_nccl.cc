#include "tests/sim/sim_nccl.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "common/base/check.h"

namespace baton::sim {

using nccl::Result;

// The library's entry points. They find the world by the GPU that is current, or by the
// communicator.
struct SimNcclCalls {
  static int version;  // Of the library that is being made.

  static SimComm* Of(nccl::Comm* comm) { return reinterpret_cast<SimComm*>(comm); }
  static Result GetVersion(int* out) {
    *out = version;
    return Result::kSuccess;
  }
  static Result GetUniqueId(nccl::UniqueId* id) {
    const uint64_t number = ++SimGpu::current->parts().nccl.last_id_;
    std::memcpy(id->bytes, &number, sizeof(number));
    return Result::kSuccess;
  }
  static Result Init(nccl::Comm** comm, int size, nccl::UniqueId id, int rank, nccl::Config*) {
    BATON_CHECK(size == 2);
    uint64_t number = 0;
    std::memcpy(&number, id.bytes, sizeof(number));
    *comm = reinterpret_cast<nccl::Comm*>(
        SimGpu::current->parts().nccl.Init(number, rank));
    return Result::kInProgress;
  }
  static Result GetAsyncError(nccl::Comm* comm, Result* state) {
    *state = Of(comm)->nccl->StateOf(Of(comm));
    return Result::kSuccess;
  }
  static Result Abort(nccl::Comm* comm) { return Of(comm)->nccl->Abort(Of(comm)); }
  static const char* ErrorString(Result) { return "a simulated error"; }
  static const char* LastError(nccl::Comm*) { return ""; }
  static Result Group() { return Result::kSuccess; }
  static Result Send(const void* data, size_t count, int, int, nccl::Comm* comm, void*) {
    return Of(comm)->nccl->Call(Of(comm), /*sends=*/true,
                                static_cast<std::byte*>(const_cast<void*>(data)), count);
  }
  static Result Recv(void* data, size_t count, int, int, nccl::Comm* comm, void*) {
    return Of(comm)->nccl->Call(Of(comm), /*sends=*/false, static_cast<std::byte*>(data), count);
  }
};
int SimNcclCalls::version = 0;

SimNccl::SimNccl(World& world, Arrival arrival, std::function<void(std::string)> violation)
    : world_(world), arrival_(std::move(arrival)), violation_(std::move(violation)) {}

std::shared_ptr<const nccl::Library> SimNccl::LibraryOf(int version) {
  std::shared_ptr<const nccl::Library>& library = libraries_[version];
  if (library != nullptr) return library;
  using Calls = SimNcclCalls;
  Calls::version = version;
  library = *nccl::Library::Of("simulated", {.GetVersion = Calls::GetVersion,
                                             .GetUniqueId = Calls::GetUniqueId,
                                             .CommInitRankConfig = Calls::Init,
                                             .CommGetAsyncError = Calls::GetAsyncError,
                                             .CommAbort = Calls::Abort,
                                             .GetErrorString = Calls::ErrorString,
                                             .GetLastError = Calls::LastError,
                                             .GroupStart = Calls::Group,
                                             .GroupEnd = Calls::Group,
                                             .Send = Calls::Send,
                                             .Recv = Calls::Recv});
  return library;
}

// ---- Communicators -----------------------------------------------------------------------------

SimComm* SimNccl::Init(uint64_t id, int rank) {
  auto comm = std::make_shared<SimComm>();
  comm->nccl = this;
  comm->gpu = SimGpu::current;
  comm->rank = rank;
  comm->number = ++last_number_;
  comms_[comm->number] = comm;
  const auto [it, is_first] = alone_.try_emplace(id, comm);
  if (!is_first) {
    const std::shared_ptr<SimComm> other = it->second.lock();
    alone_.erase(it);
    if (other != nullptr && other->gpu != nullptr) Join(other, comm);
  }
  return comm.get();
}

void SimNccl::Join(const std::shared_ptr<SimComm>& a, const std::shared_ptr<SimComm>& b) {
  const SimGpu::Parts& here = a->gpu->parts();
  const SimGpu::Parts& there = b->gpu->parts();
  if (a->rank == b->rank) violation_("NCCL: two ranks of one number");
  if (here.version != there.version) violation_("NCCL: its versions differ within a communicator");
  a->peer = b;
  b->peer = a;
  a->tells_peer = b->tells_peer = world_.random.Below(2) == 0;
  for (const auto& [comm, from, to] : {std::tuple(a, there.place, here.place),
                                       std::tuple(b, here.place, there.place)}) {
    if (world_.Hit(Fault::kNcclNeverComes)) continue;
    world_.At(arrival_(from, to), [comm = comm] {
      if (comm->gpu == nullptr) return;
      comm->is_there = true;
      comm->gpu->parts().turn();
    });
  }
}

Result SimNccl::StateOf(SimComm* comm) const {
  if (comm->has_failed) return Result::kRemoteError;
  return comm->is_there && comm->num_under_way == 0 ? Result::kSuccess : Result::kInProgress;
}

void SimNccl::Fail(const std::shared_ptr<SimComm>& comm) {
  world_.After(world_.Micros(20, 3000), [comm] {
    if (comm->gpu == nullptr) return;
    comm->has_failed = true;
    comm->gpu->parts().turn();
  });
}

// What it has on the lane ends and has moved nothing, or a part.
void SimNccl::Leave(SimComm* comm) {
  for (const auto& exchange : comm->exchanges) exchange->is_over = true;
  comm->exchanges.clear();
  comm->first.reset();
  comm->gpu = nullptr;
  const std::shared_ptr<SimComm> peer = comm->peer.lock();
  if (peer != nullptr && comm->tells_peer) Fail(peer);
}

Result SimNccl::Abort(SimComm* comm) {
  SimGpu* const gpu = comm->gpu;
  Leave(comm);
  comms_.erase(comm->number);
  gpu->Advance();
  Meet(gpu);
  return Result::kSuccess;
}

void SimNccl::GpuDied(SimGpu* gpu) {
  std::erase_if(comms_, [&](const auto& entry) {
    if (entry.second->gpu != gpu) return false;
    Leave(entry.second.get());
    return true;
  });
}

// ---- Operations --------------------------------------------------------------------------------

Result SimNccl::Call(SimComm* comm, bool sends, std::byte* data, size_t bytes) {
  if (const Result state = StateOf(comm); state != Result::kSuccess) {
    if (state == Result::kInProgress) violation_("NCCL: a call while one is under way");
    return state == Result::kInProgress ? Result::kInvalidUsage : state;
  }
  auto exchange = std::make_shared<Exchange>();
  exchange->comm = comm;
  exchange->sends = sends;
  exchange->data = data;
  exchange->bytes = bytes;
  comm->gpu->Begin(exchange);
  comm->exchanges.push_back(exchange);
  ++comm->num_under_way;
  if (std::exchange(comm->has_called, true)) {
    PutLater(exchange);
  } else {
    Connect(exchange);
  }
  return Result::kInProgress;
}

// Connections are made at the first calls, by both ranks together.
void SimNccl::Connect(const std::shared_ptr<Exchange>& exchange) {
  const std::shared_ptr<SimComm> peer = exchange->comm->peer.lock();
  if (peer == nullptr || !peer->has_called) {
    exchange->comm->first = exchange;
    return;
  }
  PutLater(exchange);
  if (peer->first != nullptr) PutLater(std::exchange(peer->first, nullptr));
}

void SimNccl::PutLater(const std::shared_ptr<Exchange>& exchange) {
  world_.After(world_.Micros(1, 200), [this, exchange] {
    if (exchange->is_over) return;
    SimGpu* const gpu = exchange->comm->gpu;
    --exchange->comm->num_under_way;
    gpu->PutOnLane(exchange);
    gpu->parts().turn();
    Meet(gpu);
  });
}

void SimNccl::Meet(SimGpu* gpu) {
  const std::shared_ptr<Exchange> ours = gpu->head();
  if (ours == nullptr || ours->has_met) return;
  const std::shared_ptr<SimComm> peer = ours->comm->peer.lock();
  if (peer == nullptr || peer->gpu == nullptr) return;
  const std::shared_ptr<Exchange> theirs = peer->gpu->head();
  if (theirs == nullptr || theirs->comm != peer.get() || theirs->has_met) return;
  if (ours->sends == theirs->sends || ours->bytes != theirs->bytes) {
    violation_("NCCL: the operations of two ranks do not fit");
  }
  ours->has_met = theirs->has_met = true;
  if (world_.Hit(Fault::kNcclFallsSilent)) return;
  if (world_.Hit(Fault::kNcclFails)) {
    Fail(comms_.at(ours->comm->number));
    Fail(peer);
    return;
  }
  const auto& [sent, received] = ours->sends ? std::pair(ours, theirs) : std::pair(theirs, ours);
  world_.At(arrival_(sent->comm->gpu->parts().place, received->comm->gpu->parts().place),
            [this, sent = sent, received = received] { Cross(sent, received); });
}

// The sender may hear of it long after the receiver, and behind its answer.
void SimNccl::Cross(const std::shared_ptr<Exchange>& sent,
                    const std::shared_ptr<Exchange>& received) {
  if (received->is_over) return;
  if (sent->is_over) {  // Of what it was sending some has come.
    std::memset(received->data, 0xEE, received->bytes / 2);
    return;
  }
  std::memcpy(received->data, sent->data, sent->bytes);
  if (world_.Hit(Fault::kNcclSpoils)) {
    received->data[world_.random.Below(received->bytes)] ^= std::byte{1}
                                                            << world_.random.Below(8);
  }
  ++received_;
  SimGpu* const gpu = received->comm->gpu;
  End(received);
  on_received_(gpu);
  const Duration later =
      world_.random.Below(16) == 0 ? world_.Micros(1000, 20000) : world_.Micros(1, 300);
  world_.After(later, [this, sent] {
    if (!sent->is_over) End(sent);
  });
}

void SimNccl::End(const std::shared_ptr<Exchange>& exchange) {
  SimGpu* const gpu = exchange->comm->gpu;
  exchange->is_over = true;
  std::erase(exchange->comm->exchanges, exchange);
  gpu->Advance();
  gpu->parts().turn();
  Meet(gpu);
}

}  // namespace baton::sim
