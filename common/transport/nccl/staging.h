#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/running_time.h"
#include "common/kv_cache/kv_cache.h"
#include "common/transport/block_stager.h"
#include "common/transport/nccl/batch_actions.h"
#include "kernels/api/device.h"

namespace baton::nccl {

// The staging slots' memory on the device, and the kernels between them and the pool, on kTransfer.
// What is launched lands, or the process ends. One thread.
class Staging {
 public:
  struct Options {
    int slots = 8;
    int64_t slot_bytes = int64_t{16} << 20;  // A multiple of 16, for the kernels.
    size_t max_pieces = size_t{64} << 10;  // Of a launch.
  };

  // Where a frame of a batch lies in the pool. In the slot they lie one behind the other.
  struct Frame {
    BlockStager::Work work;
    int64_t bytes = 0;
    std::vector<PoolPiece> pieces;  // None: it is not moved.
  };

  // What has landed.
  struct Landed {
    enum class Kind : uint8_t { kGather, kSum, kScatter };
    Kind kind = Kind::kGather;
    BatchKey key;
    std::vector<uint64_t> sums;  // kGather, kSum: of each frame.
    FrameSet moved;              // kGather, kScatter.
  };

  using OnLost = std::function<void(const absl::Status&)>;

  // Before the device's first step. Device and cache outlive it. Errors of the allocation.
  // `on_lost` ends the process.
  static absl::StatusOr<std::unique_ptr<Staging>> Create(Device& device, const KvCache& cache,
                                                         const Options& options, OnLost on_lost,
                                                         std::function<Time()> now = SteadyNow);

  std::byte* slot(int i) const { return slots_.data() + i * options_.slot_bytes; }
  const Options& options() const { return options_; }

  // From the pool, and the sums of what is then in the slot.
  void Gather(BatchKey key, int slot, std::span<const Frame> frames);
  // Of frames of these sizes.
  void Sum(BatchKey key, int slot, std::span<const int64_t> bytes);
  // To the pool.
  void Scatter(BatchKey key, int slot, std::span<const Frame> frames);

  // In the order of the launches; once each.
  std::vector<Landed> Collect();
  int Busy(const BlockStager::Work& work) const;
  bool idle() const { return launched_.empty(); }
  // Returns when all has landed.
  void AwaitQuiet();

 private:
  struct Launched {
    Landed landed;
    int slot = 0;
    size_t num_sums = 0;
    std::vector<BlockStager::Work> works;
    Mark mark;
  };

  Staging(Device& device, const KvCache& cache, const Options& options, OnLost on_lost,
          std::function<Time()> now);
  void Move(int slot, std::span<const Frame> frames, bool gathers, Launched* launched);
  void LaunchSums(int slot, std::span<const int64_t> bytes);
  void Finish(Launched launched);
  void CheckDevice(const absl::Status& status) const;
  // Of each slot: list of pieces, list of sums, sums.
  CopyPiece* PiecesOf(int slot) const;
  SummedPiece* SummedOf(int slot) const;
  uint64_t* SumsOf(int slot) const;

  Device& device_;
  std::byte* const pool_;
  const Options options_;
  const OnLost on_lost_;
  const std::function<Time()> now_;
  const int64_t list_bytes_;  // Of a slot.
  Buffer slots_;
  Buffer lists_;  // Pinned.
  std::deque<Launched> launched_;
  std::map<BlockStager::Work, int> busy_;
  RunningTime waited_;  // For the first of them, since the one before has landed.
};

}  // namespace baton::nccl
