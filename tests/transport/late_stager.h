#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "common/base/random.h"
#include "common/transport/block_stager.h"

namespace baton {

// A stager over a pool of plain memory whose copies land late: after a number of Collects that the
// seed draws, in any order. What a gather reads and a scatter writes is what is there then. The
// state may be read from any thread, the rest is the progress thread's.
class LateStager : public BlockStager {
 public:
  struct Options {
    uint64_t seed = 1;
    int slots = 8;
    int max_delay = 4;  // Collects from the launch to the landing.
  };
  // The pool outlives it.
  LateStager(std::byte* pool, const Options& options);

  std::shared_ptr<GatheredBytes> Gather(const Work& work,
                                        std::span<const PoolPiece> pieces) override;
  bool Scatter(const Work& work, std::span<const PoolPiece> pieces,
               std::span<const std::byte> payload) override;
  void Collect() override;
  int Busy(const Work& work) const override;
  bool idle() const override { return launched_ == 0; }
  void AwaitQuiet() override;

  // Nothing lands until it is lifted.
  void Hold(bool held) { held_ = held; }
  int launched() const { return launched_; }
  int64_t gathers() const { return gathers_; }
  int64_t scatters() const { return scatters_; }
  int64_t collects() const { return collects_; }
  // Of all launches, in their order, and of those that found no slot free.
  std::vector<Work> works() const;
  std::set<Work> refused() const;
  // How often at most one was refused, others having got a slot since the time before.
  int max_overtaken() const;

 private:
  struct Copy {
    Work work;
    int delay = 0;
    std::vector<PoolPiece> pieces;
    std::vector<std::byte> payload;            // Of a scatter.
    std::shared_ptr<GatheredBytes> gathered;   // Of a gather.
  };
  // How it fared since its last launch.
  struct Wait {
    size_t launches = 0;  // Of all, when it was refused.
    int overtaken = 0;
  };
  bool Launch(Copy copy, std::span<const PoolPiece> pieces);
  void Refuse(const Work& work);
  void Land(Copy& copy);

  std::byte* const pool_;
  const Options options_;
  Random random_;
  std::vector<Copy> copies_;
  std::atomic<bool> held_{false};
  std::atomic<int> launched_{0};
  std::atomic<int64_t> gathers_{0}, scatters_{0}, collects_{0};
  mutable std::mutex mutex_;
  std::vector<Work> works_;
  std::set<Work> refused_;
  std::map<Work, Wait> waits_;
  int max_overtaken_ = 0;
};

}  // namespace baton
