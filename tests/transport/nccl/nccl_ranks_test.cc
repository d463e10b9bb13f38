// Handoffs between workers of any number of ranks, each on a GPU of its own, over emulated NCCL.


#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "tests/transport/nccl/gpu_endpoint.h"
#include "tests/transport/ranked_worker.h"

namespace baton {
namespace {

constexpr int32_t kHeads = 4;
constexpr int kGpusOfAWorker = 4;
constexpr uint32_t kFrameBytes = 2000;

// No two ranks have slots of one size: those of the sender are mostly the larger ones, and the
// smallest holds a frame.
nccl::Staging::Options StagingOf(int rank, bool sends) {
  const int frames = sends ? 2 * (kGpusOfAWorker - rank) : 2 * rank + 1;
  return {.slots = sends ? 4 : 1 + rank,
          .slot_bytes = int64_t{kFrameBytes} * frames,
          .max_pieces = 8192};
}

// A worker's ranks, and the GPUs below them.
class GpuWorker {
 public:
  GpuWorker(const EndpointSpec& spec, int first_gpu, std::shared_ptr<const nccl::Library> library)
      : worker_(spec, [&](const EndpointSpec& rank, KvTransport::EventSink also) {
          gpus_.push_back(
              MakeGpuEndpoint(rank, first_gpu + rank.place.rank, library, std::move(also),
                              StagingOf(rank.place.rank, /*sends=*/first_gpu == 0)));
          return std::move(gpus_.back()->owned);
        }) {}

  RankedWorker* worker() { return &worker_; }
  void Upload() {
    for (const auto& gpu : gpus_) gpu->Upload();
  }
  void Download() {
    for (const auto& gpu : gpus_) gpu->Download();
  }
  int64_t Sum(int64_t nccl::CarrierCounters::*value) const {
    int64_t sum = 0;
    for (const auto& gpu : gpus_) sum += gpu->carrier_counters().*value;
    return sum;
  }
  // Bytes of handoffs that arrived, by NCCL and beside it.
  std::pair<int64_t, int64_t> accepted() const {
    std::pair<int64_t, int64_t> sum;
    for (const auto& gpu : gpus_) {
      sum.first += gpu->endpoint.counters().nccl_bytes_accepted;
      sum.second += gpu->endpoint.counters().bytes_accepted;
    }
    return sum;
  }

 private:
  std::vector<std::unique_ptr<GpuEndpoint>> gpus_;  // Outlive the ranks.
  RankedWorker worker_;
};

class NcclRanksTest : public testing::Test {
 protected:
  NcclRanksTest() : library_(*nccl::Library::Open(BATON_EMULATED_NCCL_LIBRARY)) {
    ConfigureEmulatedNccl("");
  }
  ~NcclRanksTest() override { ConfigureEmulatedNccl(""); }

  std::unique_ptr<GpuWorker> Make(Incarnation incarnation, int32_t size, int32_t block_size) {
    return std::make_unique<GpuWorker>(EndpointSpec{.incarnation = incarnation,
                                                    .block_size = block_size,
                                                    .num_blocks = 128 / block_size + 2,
                                                    .place = {0, size},
                                                    .kv_heads = kHeads,
                                                    .num_layers = 2,
                                                    .max_frame_bytes = kFrameBytes,
                                                    .time_scale = 10},
                                       incarnation == 1 ? 0 : kGpusOfAWorker, library_);
  }

  // The handoff's bytes, all of them.
  int64_t Handover(GpuWorker* from, GpuWorker* to, TokenRange tokens) {
    const RankedHandoff h = MakeRankedHandoff(from->worker(), to->worker(), tokens, index_++);
    from->Upload();
    to->Upload();
    h.Run(40);
    to->worker()->log.WaitEnded(h.ticket, true);
    to->Download();
    h.ExpectVerified();
    return h.bytes();
  }

  // Every leg has a communicator: connections are the first handoff's.
  void AwaitNccl(const GpuWorker& from, const GpuWorker& to) {
    const auto are_up = [&](const GpuWorker& w) {
      return w.Sum(&nccl::CarrierCounters::links_over_tcp) == 0 &&
             w.Sum(&nccl::CarrierCounters::links_over_nccl) > 0;
    };
    EXPECT_TRUE(WaitUntil("NCCL", std::chrono::seconds(150), [&]() -> absl::StatusOr<bool> {
                  return are_up(from) && are_up(to);
                }).ok());
  }

  std::shared_ptr<const nccl::Library> library_;
  int32_t index_ = 0;
};

TEST_F(NcclRanksTest, EachRankGetsItsHeadsOverNcclWhateverTheNumbersOfRanks) {
  for (const auto& [senders, receivers] : {std::pair{2, 1}, {1, 2}, {4, 2}, {2, 4}}) {
    SCOPED_TRACE(testing::Message() << senders << " ranks to " << receivers);
    const auto from = Make(1, senders, 8);
    const auto to = Make(2, receivers, receivers == 2 ? 32 : 4);
    Handover(from.get(), to.get(), {0, 90});
    AwaitNccl(*from, *to);
    if (HasFailure()) return;
    const auto before = to->accepted();
    const int64_t bytes = Handover(from.get(), to.get(), {21, 79});
    const auto after = to->accepted();
    EXPECT_EQ(after.first - before.first, bytes);
    EXPECT_EQ(after.second, before.second) << "over TCP";
  }
}

TEST_F(NcclRanksTest, ARankWhoseCommunicatorFailsCostsTheHandoffNothing) {
  const auto from = Make(1, 2, 16);
  const auto to = Make(2, 2, 8);
  Handover(from.get(), to.get(), {0, 90});
  AwaitNccl(*from, *to);
  // Works of all ranks are counted together.
  for (int n = 1; n <= 8 && to->Sum(&nccl::CarrierCounters::pairs_failed) == 0; ++n) {
    if (HasFailure()) return;
    ConfigureEmulatedNccl("fail=" + std::to_string(n));
    Handover(from.get(), to.get(), {0, 90});
  }
  EXPECT_EQ(to->Sum(&nccl::CarrierCounters::pairs_failed), 1) << "of one rank alone";
}

}  // namespace
}  // namespace baton
