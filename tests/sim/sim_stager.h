#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/transport/block_stager.h"
#include "tests/sim/tag_memory.h"
#include "tests/sim/world.h"

namespace baton::sim {

// A device's lane of copies in virtual time: each lands a drawn time after its launch, in their
// order, and is checked against the owners of its blocks at that moment.
class SimStager : public BlockStager {
 public:
  struct Totals {
    int64_t gathers = 0;
    int64_t scatters = 0;
    int64_t refused = 0;  // No slot was free.
    Totals& operator+=(const Totals& other);
  };
  // All outlive it. `turn` asks for a turn of the transport; what it does is added to `totals`.
  SimStager(World& world, Host& host, TagMemory& memory, Totals* totals,
            std::function<void()> turn);

  std::shared_ptr<GatheredBytes> Gather(const Work& work,
                                        std::span<const PoolPiece> pieces) override;
  bool Scatter(const Work& work, std::span<const PoolPiece> pieces,
               std::span<const std::byte> payload) override;
  void Collect() override;
  int Busy(const Work& work) const override;
  bool idle() const override { return copies_.empty(); }
  void AwaitQuiet() override;

 private:
  struct Copy {
    Work work;
    std::vector<PoolPiece> pieces;
    std::vector<std::byte> bytes;
    std::shared_ptr<GatheredBytes> gathered;  // Of a gather.
    bool landed = false;
  };
  bool Launch(Copy copy, std::span<const PoolPiece> pieces);
  void Land(Copy& copy);

  World& world_;
  Host& host_;
  TagMemory& memory_;
  Totals& totals_;
  const std::function<void()> turn_;
  size_t slots_;
  Time last_landing_{};
  std::vector<std::shared_ptr<Copy>> copies_;
};

}  // namespace baton::sim
