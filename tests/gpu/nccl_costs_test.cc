// What NCCL costs between two ranks on GPU 0, both of this process: a row of JSON a line. Bytes are
// to be those that were sent, aborts are to return; there is no verdict on figures. Two processes
// on one GPU take turns on it: speed between them would be that of their turns.

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/transport/nccl/nccl_library.h"
#include "kernels/cuda/cuda_device.h"
#include "nlohmann/json.hpp"

namespace baton::nccl {
namespace {

#if defined(BATON_CUDA_DEVICE)
constexpr int64_t kMostBytes = 16 << 20;  // A staging slot.
constexpr int kTimes = 20;
#else
constexpr int64_t kMostBytes = 256 << 10;
constexpr int kTimes = 2;
#endif
constexpr int64_t kLeastBytes = 64 << 10;
constexpr Duration kLimit = std::chrono::seconds(20);
constexpr int kReceiver = 0, kSender = 1;

template <typename T>
T Take(absl::StatusOr<T> value) {
  EXPECT_TRUE(value.ok()) << value.status();
  BATON_CHECK(value.ok());
  return *std::move(value);
}

void Check(const absl::Status& status) {
  EXPECT_TRUE(status.ok()) << status;
  BATON_CHECK(status.ok());
}

struct Rank {
  std::unique_ptr<Device> device = Take(MakeCudaDevice(0));
  Buffer there = Take(device->Allocate(kMostBytes, MemoryKind::kDevice));
  // The bytes, and behind them the description of their copy.
  Buffer host = Take(device->Allocate(kMostBytes + 64, MemoryKind::kPinned));
  Comm* comm = nullptr;

  Mark Now() { return Take(device->MarkNow(Lane::kExchange)); }
  void Quiet() { Check(Wait(*device, Now(), kLimit)); }
  void Copy(bool up) {
    auto* const piece = host.array<CopyPiece>(kMostBytes);
    *piece = up ? CopyPiece{host.data(), there.data(), kMostBytes}
                : CopyPiece{there.data(), host.data(), kMostBytes};
    Check(device->CopyPieces(Lane::kExchange, {piece, 1}));
    Quiet();
  }
};

void Print(const std::string& name, double value, const char* unit) {
  std::puts(nlohmann::json{{"name", name}, {"value", value}, {"unit", unit}}.dump().c_str());
  std::fflush(stdout);
}

class NcclCostsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (LibraryPath() == kLibrary) GTEST_SKIP() << kLibraryVariable << " names no NCCL";
    library_ = Take(Library::Open());
    Print("version", library_->version(), "");
  }

  void Settle() {
    Check(WaitUntil("NCCL", kLimit, [&]() -> absl::StatusOr<bool> {
      for (const Rank& rank : ranks_) {
        const auto settled = library_->AsyncState(rank.comm);
        if (!settled.ok() || !*settled) return settled;
      }
      return true;
    }));
  }

  // Both ranks by one thread, for no call blocks.
  double Connect() {
    const Time begin = SteadyNow();
    const UniqueId id = Take(library_->MakeUniqueId());
    for (int r = 0; r < 2; ++r) {
      Take(ranks_[r].device->NativeLane(Lane::kExchange));
      ranks_[r].comm = Take(library_->Init(id, r));
    }
    Settle();
    return ToSeconds(SteadyNow() - begin);
  }

  void Receive(int64_t bytes) {
    Rank& rank = ranks_[kReceiver];
    void* const lane = Take(rank.device->NativeLane(Lane::kExchange));
    Check(library_->Receive(rank.comm, kSender, rank.there.data(), bytes, lane));
  }
  void Send(int64_t bytes) {
    Rank& rank = ranks_[kSender];
    void* const lane = Take(rank.device->NativeLane(Lane::kExchange));
    Check(library_->Send(rank.comm, kReceiver, rank.there.data(), bytes, lane));
  }

  // Seconds of one exchange, as the transport makes them: the next is begun when NCCL has the last.
  double Exchange(int64_t bytes, int times) {
    const Time begin = SteadyNow();
    for (int i = 0; i < times; ++i) {
      Receive(bytes);
      Send(bytes);
      Settle();
    }
    for (Rank& rank : ranks_) rank.Quiet();
    return ToSeconds(SteadyNow() - begin) / times;
  }

  double Abort(int r) {
    const Time begin = SteadyNow();
    Check(library_->Abort(std::exchange(ranks_[r].comm, nullptr)));
    return 1e3 * ToSeconds(SteadyNow() - begin);
  }

  void MeasureSpeed() {
    Rank& sender = ranks_[kSender];
    for (int64_t i = 0; i < kMostBytes; ++i) {
      sender.host.data()[i] = static_cast<std::byte>(i ^ i >> 8 ^ i >> 16);
    }
    sender.Copy(/*up=*/true);
    Exchange(kMostBytes, 1);
    ranks_[kReceiver].Copy(/*up=*/false);
    EXPECT_EQ(std::memcmp(ranks_[kReceiver].host.data(), sender.host.data(), kMostBytes), 0);
    for (int64_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= 4) {
      const double seconds = Exchange(bytes, kTimes);
      const std::string name = "NCCL, two ranks, " + std::to_string(bytes >> 10) + " KiB";
      Print(name, 1e-9 * static_cast<double>(bytes) / seconds, "GB/s");
    }
  }

  // The receive of which nothing has come ends when it is aborted.
  void AbortAlone() {
    Receive(kLeastBytes);
    Settle();
    const Mark mark = ranks_[kReceiver].Now();
    const Time begin = SteadyNow();
    Check(WaitUntil("clock", kLimit, [&]() -> absl::StatusOr<bool> {
      return SteadyNow() - begin > std::chrono::milliseconds(100);
    }));
    EXPECT_FALSE(Take(ranks_[kReceiver].device->IsDone(mark)));
    Print("abort of a posted receive", Abort(kReceiver), "ms");
    EXPECT_TRUE(Wait(*ranks_[kReceiver].device, mark, kLimit).ok());
    Print("abort of the other rank", Abort(kSender), "ms");
  }

  std::shared_ptr<const Library> library_;
  std::array<Rank, 2> ranks_;
};

TEST_F(NcclCostsTest, EachIsMeasured) {
  Print("first init", Connect(), "s");
  Print("first exchange", Exchange(kLeastBytes, 1), "s");
  MeasureSpeed();
  AbortAlone();
  Print("second init", Connect(), "s");
  Print("first exchange after it", Exchange(kLeastBytes, 1), "s");
  AbortAlone();
}

}  // namespace
}  // namespace baton::nccl
