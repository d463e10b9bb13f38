#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/transport/nccl/nccl_library.h"
#include "tests/sim/sim_gpu.h"
#include "tests/sim/world.h"

namespace baton::sim {

// One rank's half of a communicator; NCCL's Comm.
struct SimComm {
  SimNccl* nccl = nullptr;
  SimGpu* gpu = nullptr;  // Null: it was aborted, or its process is gone.
  uint64_t number = 0;  // Of those of the world.
  int rank = 0;
  std::weak_ptr<SimComm> peer;
  bool is_there = false;
  bool tells_peer = false;  // Of its end; else the peer hears nothing, as over NVLink.
  bool has_failed = false;
  int num_under_way = 0;    // Calls that are not on the lane yet.
  bool has_called = false;
  std::shared_ptr<Exchange> first;  // Waits for the peer's call, without which nothing connects.
  std::deque<std::shared_ptr<Exchange>> exchanges;  // Not over, in the order of the calls.
};

// NCCL between the GPUs of all ranks, in virtual time, behind the library's entry points. An
// operation holds its GPU's lane until the other rank's has come to the head of its own lane, bytes
// have crossed and both have heard; the first one gets there only when both ranks have called; an
// abort or a dead process ends it, an error does not. Drawn: delays, the order among pairs,
// communicators that never come, errors, silence, spoiled bytes.
class SimNccl {
 public:
  // When something from `from` is at `to`.
  using Arrival = std::function<Time(Place from, Place to)>;
  SimNccl(World& world, Arrival arrival, std::function<void(std::string)> violation);

  // The same for all of a version.
  std::shared_ptr<const nccl::Library> LibraryOf(int version);
  // Its process is gone.
  void GpuDied(SimGpu* gpu);
  // Told when bytes have come into a slot of that GPU.
  void OnReceived(std::function<void(SimGpu*)> told) { on_received_ = std::move(told); }
  int64_t received() const { return received_; }

 private:
  friend struct SimNcclCalls;  // The entry points.

  SimComm* Init(uint64_t id, int rank);
  nccl::Result StateOf(SimComm* comm) const;
  nccl::Result Call(SimComm* comm, bool sends, std::byte* data, size_t bytes);
  nccl::Result Abort(SimComm* comm);
  void Join(const std::shared_ptr<SimComm>& a, const std::shared_ptr<SimComm>& b);
  void Leave(SimComm* comm);
  void Fail(const std::shared_ptr<SimComm>& comm);
  void Connect(const std::shared_ptr<Exchange>& exchange);
  void PutLater(const std::shared_ptr<Exchange>& exchange);
  // If the heads of two lanes belong together.
  void Meet(SimGpu* gpu);
  void Cross(const std::shared_ptr<Exchange>& sent, const std::shared_ptr<Exchange>& received);
  void End(const std::shared_ptr<Exchange>& exchange);

  World& world_;
  const Arrival arrival_;
  const std::function<void(std::string)> violation_;
  std::function<void(SimGpu*)> on_received_;
  std::map<int, std::shared_ptr<const nccl::Library>> libraries_;
  uint64_t last_id_ = 0;
  std::map<uint64_t, std::weak_ptr<SimComm>> alone_;  // The other rank has not come.
  uint64_t last_number_ = 0;
  std::map<uint64_t, std::shared_ptr<SimComm>> comms_;
  int64_t received_ = 0;
};

}  // namespace baton::sim
