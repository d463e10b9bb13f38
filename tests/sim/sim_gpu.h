#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/sim/tag_memory.h"
#include "tests/sim/world.h"
#include "tests/transport/copying_device.h"

namespace baton::sim {

struct SimComm;
class SimNccl;

// An ncclSend or ncclRecv.
struct Exchange {
  SimComm* comm = nullptr;
  bool sends = false;
  std::byte* data = nullptr;
  size_t bytes = 0;
  bool has_met = false;  // Its counterpart, at the head of the other lane.
  bool is_over = false;  // It touches nothing any more.
  Duration waited{};     // On the lane.
};

// What a carrier needs of a rank's GPU, in virtual time: staging memory, the lanes kTransfer and
// kExchange, which go on while the process is stopped, and the thread for calls of NCCL that take
// long. Checks that no slot has two users, that kernels find the owners of their blocks in order,
// and that nothing stands on kExchange for longer than its bound.
class SimGpu : public CopyingDevice {
 public:
  // All outlive it. `turn` asks for a turn of the transport.
  struct Parts {
    World& world;
    Host& host;
    TagMemory& memory;
    Place place;
    SimNccl& nccl;
    int version = 0;  // Of its NCCL.
    std::function<void()> turn;
    std::function<void(std::string)> violation;
  };
  explicit SimGpu(Parts parts) : CopyingDevice("a simulated GPU"), parts_(std::move(parts)) {}

  // The one that the calls of NCCL of now are for.
  static SimGpu* current;

  const Parts& parts() const { return parts_; }

  // NCCL: it is called, and reaches its lane later, if it does.
  void Begin(std::shared_ptr<Exchange> exchange);
  void PutOnLane(std::shared_ptr<Exchange> exchange) { lane_.push_back(std::move(exchange)); }
  // Of some that are over now.
  void Advance();
  // Null: the lane is empty.
  std::shared_ptr<Exchange> head() const { return lane_.empty() ? nullptr : lane_.front(); }

  // BlockingCalls::Post.
  void Post(std::function<void()> call);

  // The decode ranks have said this once more. There are no more gathers than that.
  void NoteGrant() { ++grants_; }
  bool is_moving() const { return !groups_.empty(); }
  std::string DescribeState() const;
  // Each turn of the transport, by the process's own clock.
  void Watch(Time now);

  absl::StatusOr<Buffer> Allocate(int64_t bytes, MemoryKind kind) override;
  absl::Status CopyPieces(Lane lane, std::span<const CopyPiece> pieces) override;
  absl::Status SumPieces(Lane lane, std::span<const SummedPiece> pieces) override;
  absl::StatusOr<void*> NativeLane(Lane lane) override;
  absl::StatusOr<Mark> MarkNow(Lane lane) override;
  absl::StatusOr<bool> IsDone(Mark mark) override;

 private:
  // What was enqueued on kTransfer between two marks; it lands at once.
  struct Group {
    std::vector<std::span<const CopyPiece>> copies;
    std::vector<std::span<const SummedPiece>> sums;
    std::vector<std::span<const std::byte>> staged;  // What of the staging memory.
  };

  bool IsStaging(const std::byte* at) const;
  void Use(std::span<const std::byte> staged);
  // Neither NCCL nor a kernel that was launched before has it.
  void CheckUnused(std::span<const std::byte> staged, bool by_nccl);
  void Land();
  void NextCall();

  Parts parts_;
  Buffer staging_;
  Group launching_;
  std::deque<Group> groups_;
  uint64_t num_groups_ = 0;
  uint64_t num_landed_ = 0;
  Time last_landing_{};
  std::vector<std::shared_ptr<Exchange>> begun_;  // And not over.
  std::deque<std::shared_ptr<Exchange>> lane_;
  uint64_t num_left_ = 0;  // The lane.
  std::deque<std::function<void()>> calls_;
  bool is_hung_ = false;  // The first of them never returns.
  int64_t grants_ = 0;
  int64_t gathers_ = 0;
  Time watched_{};
};

}  // namespace baton::sim
