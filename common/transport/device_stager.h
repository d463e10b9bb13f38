#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/running_time.h"
#include "common/kv_cache/kv_cache.h"
#include "common/transport/block_stager.h"
#include "kernels/api/device.h"

namespace baton {

// A stager of a device's pool: each slot is pinned memory for the payload of one frame and for the
// list of its pieces, and one CopyPieces on kTransfer moves it.
class DeviceStager : public BlockStager {
 public:
  static constexpr int kSlots = 8;

  // What the device says when it fails, or that it has not ended a copy within kDeviceLimit. Ends
  // the process.
  using OnLost = std::function<void(const absl::Status&)>;

  // Before the device's first step. Device and cache outlive it. INVALID_ARGUMENT when a head of a
  // token is no multiple of 8 bytes; errors of the allocation. `now`: the clock.
  static absl::StatusOr<std::unique_ptr<DeviceStager>> Create(
      Device& device, const KvCache& cache, OnLost on_lost,
      std::function<Time()> now = SteadyNow);

  std::shared_ptr<GatheredBytes> Gather(const Work& work,
                                        std::span<const PoolPiece> pieces) override;
  bool Scatter(const Work& work, std::span<const PoolPiece> pieces,
               std::span<const std::byte> payload) override;
  void Collect() override;
  int Busy(const Work& work) const override;
  bool idle() const override { return launched_.empty(); }
  void AwaitQuiet() override;

 private:
  struct Launched {
    int slot = 0;
    Work work;
    Mark mark;
    std::shared_ptr<GatheredBytes> gathered;  // Of a gather.
    int64_t bytes = 0;
  };

  DeviceStager(Device& device, const KvCache& cache, OnLost on_lost, std::function<Time()> now,
               int64_t max_pieces);
  std::byte* PayloadOf(int slot) const { return memory_.data() + slot * slot_bytes_; }
  // Of the slot's list of pieces, for copies between pool and payload.
  std::span<const CopyPiece> ListPieces(int slot, std::span<const PoolPiece> pieces,
                                        bool gather) const;
  bool Launch(const Work& work, std::span<const PoolPiece> pieces,
              std::span<const std::byte> payload, std::shared_ptr<GatheredBytes> gathered);
  void CheckDevice(const absl::Status& status) const;

  Device& device_;
  std::byte* const pool_;
  const OnLost on_lost_;
  const std::function<Time()> now_;
  const int64_t max_pieces_;
  const int64_t slot_bytes_;
  Buffer memory_;
  std::vector<int> free_;
  std::deque<Launched> launched_;  // The lane keeps their order.
  RunningTime waited_;             // For the first of them, since the one before has landed.
};

}  // namespace baton
