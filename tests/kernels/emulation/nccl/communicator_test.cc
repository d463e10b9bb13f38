// Both ranks in one process, whose work the test's own thread does.

#include "common/transport/nccl/nccl_library.h"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/api/device.h"
#include "kernels/emulation/cuda_api.h"
#include "kernels/emulation/emulator.h"

namespace baton::emulation::nccl {
namespace {

using baton::nccl::Comm;
using baton::nccl::Library;
using baton::nccl::UniqueId;
using testing::AllOf;
using testing::HasSubstr;

constexpr Duration kLimit = std::chrono::seconds(60);

class CommunicatorTest : public testing::Test {
 protected:
  CommunicatorTest() {
    ResetDevice();
    void* handle = dlopen(BATON_EMULATED_NCCL_LIBRARY, RTLD_NOW);
    EXPECT_NE(handle, nullptr) << dlerror();
    configure_ = reinterpret_cast<int (*)(const char*)>(dlsym(handle, "baton_nccl_configure"));
    Configure("one_device=1");
    auto library = Library::Open(BATON_EMULATED_NCCL_LIBRARY);
    EXPECT_TRUE(library.ok()) << library.status();
    library_ = *std::move(library);
    for (int rank = 0; rank < 2; ++rank) {
      cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking);
      cudaEventCreateWithFlags(&events_[rank], cudaEventDisableTiming);
      cudaHostAlloc(&slots_[rank], kBytes, cudaHostAllocDefault);
    }
  }

  ~CommunicatorTest() override {
    Configure("");
    for (Comm* comm : comms_) {
      if (comm == nullptr) continue;
      EXPECT_TRUE(library_->Abort(comm).ok());
    }
    for (int rank = 0; rank < 2; ++rank) {
      cudaStreamDestroy(streams_[rank]);
      cudaEventDestroy(events_[rank]);
      cudaFreeHost(slots_[rank]);
    }
  }

  void Configure(const char* options) { EXPECT_EQ(configure_(options), 1); }

  void Init() {
    const absl::StatusOr<UniqueId> id = library_->MakeUniqueId();
    ASSERT_TRUE(id.ok());
    for (int rank = 0; rank < 2; ++rank) {
      const absl::StatusOr<Comm*> comm = library_->Init(*id, rank);
      ASSERT_TRUE(comm.ok()) << comm.status();
      comms_[rank] = *comm;
    }
  }

  absl::Status Settle(int rank) {
    return WaitUntil("the pair", kLimit, [&] { return library_->AsyncState(comms_[rank]); });
  }

  void InitAndSettle() {
    Init();
    ASSERT_TRUE(Settle(0).ok());
    ASSERT_TRUE(Settle(1).ok());
  }

  // That both have called for.
  void AwaitBytes() {
    ASSERT_TRUE(Settle(0).ok());
    ASSERT_TRUE(Settle(1).ok());
    for (cudaStream_t stream : streams_) ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }

  // By a byte: the connection is made at the first calls of both, and later ones wait for nobody.
  void Connect() {
    InitAndSettle();
    ASSERT_TRUE(Receive(0, 1).ok());
    ASSERT_TRUE(Send(1, 1).ok());
    AwaitBytes();
  }

  absl::Status Send(int rank, size_t bytes) {
    return library_->Send(comms_[rank], 1 - rank, slots_[rank], bytes, streams_[rank]);
  }
  absl::Status Receive(int rank, size_t bytes) {
    return library_->Receive(comms_[rank], 1 - rank, slots_[rank], bytes, streams_[rank]);
  }

  static constexpr size_t kBytes = 1000;
  int (*configure_)(const char*) = nullptr;
  std::unique_ptr<Library> library_;
  std::array<Comm*, 2> comms_ = {};
  std::array<cudaStream_t, 2> streams_ = {};
  std::array<cudaEvent_t, 2> events_ = {};
  std::array<void*, 2> slots_ = {};
};

TEST_F(CommunicatorTest, SecondRankOnOneDeviceIsRefused) {
  Configure("");
  Init();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(Settle(rank).message(), HasSubstr("duplicate GPU"));
  }
}

// Whichever call is first.
TEST_F(CommunicatorTest, FirstCallIsInProgressUntilThePeerHasCalledToo) {
  for (int seed = 1; seed <= 8; ++seed) {
    Configure(("one_device=1 seed=" + std::to_string(seed)).c_str());
    InitAndSettle();
    const int first = seed % 2;
    const auto call = [&](int rank) { return rank == 0 ? Receive(0, 1) : Send(1, 1); };
    ASSERT_TRUE(call(first).ok());
    for (int i = 0; i < 100; ++i) {
      const absl::StatusOr<bool> settled = library_->AsyncState(comms_[first]);
      ASSERT_TRUE(settled.ok());
      ASSERT_FALSE(*settled);
    }
    // Nothing of it is on its stream.
    EXPECT_EQ(cudaStreamSynchronize(streams_[first]), cudaSuccess);
    ASSERT_TRUE(call(1 - first).ok());
    AwaitBytes();
    for (Comm*& comm : comms_) EXPECT_TRUE(library_->Abort(std::exchange(comm, nullptr)).ok());
  }
}

TEST_F(CommunicatorTest, FirstCallWhosePeerGoesAwayFails) {
  InitAndSettle();
  ASSERT_TRUE(Receive(0, kBytes).ok());
  EXPECT_TRUE(library_->Abort(std::exchange(comms_[1], nullptr)).ok());
  EXPECT_TRUE(absl::IsUnavailable(Settle(0)));
}

TEST_F(CommunicatorTest, WorkBehindAReceiveWaitsUntilItIsMatched) {
  Connect();
  std::memset(slots_[1], 7, kBytes);
  ASSERT_TRUE(Receive(0, kBytes).ok());
  ASSERT_TRUE(Settle(0).ok());
  cudaEventRecord(events_[0], streams_[0]);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(cudaEventQuery(events_[0]), cudaErrorNotReady);
  // Other streams go on.
  cudaEventRecord(events_[1], streams_[1]);
  EXPECT_EQ(cudaEventSynchronize(events_[1]), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(events_[0]), cudaErrorNotReady);
  ASSERT_TRUE(Send(1, kBytes).ok());
  ASSERT_TRUE(Settle(1).ok());
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(streams_[1]), cudaSuccess);
  EXPECT_EQ(std::memcmp(slots_[0], slots_[1], kBytes), 0);
}

// An event that is made before the state says so is not behind the call.
TEST_F(CommunicatorTest, SomeSeedPutsACallOnItsStreamLater) {
  bool late = false;
  for (int seed = 1; seed <= 8 && !late; ++seed) {
    Configure(("one_device=1 seed=" + std::to_string(seed)).c_str());
    Connect();
    ASSERT_TRUE(Receive(0, kBytes).ok());
    cudaEventRecord(events_[0], streams_[0]);
    const absl::StatusOr<bool> state = library_->AsyncState(comms_[0]);
    ASSERT_TRUE(state.ok());
    late = !*state;
    if (late) {
      EXPECT_EQ(cudaEventSynchronize(events_[0]), cudaSuccess);
      // Another call is refused meanwhile.
      EXPECT_THAT(Receive(0, kBytes).message(), HasSubstr("in progress"));
    }
    for (Comm*& comm : comms_) EXPECT_TRUE(library_->Abort(std::exchange(comm, nullptr)).ok());
    EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  }
  EXPECT_TRUE(late);
}

TEST_F(CommunicatorTest, GroupsDoBothDirectionsAtOnce) {
  Connect();
  std::vector<char> expected(kBytes / 2, 3);
  std::memset(slots_[0], 3, kBytes / 2);
  std::memset(slots_[1], 4, kBytes / 2);
  for (int rank = 0; rank < 2; ++rank) {
    auto* half = static_cast<std::byte*>(slots_[rank]) + kBytes / 2;
    EXPECT_TRUE(library_->GroupStart().ok());
    EXPECT_TRUE(Send(rank, kBytes / 2).ok());
    EXPECT_TRUE(
        library_->Receive(comms_[rank], 1 - rank, half, kBytes / 2, streams_[rank]).ok());
    EXPECT_TRUE(library_->GroupEnd().ok());
    ASSERT_TRUE(Settle(rank).ok());
  }
  for (cudaStream_t stream : streams_) EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(std::memcmp(static_cast<std::byte*>(slots_[1]) + kBytes / 2, expected.data(),
                        expected.size()), 0);
}

TEST_F(CommunicatorTest, WorksOfOneCommunicatorTakeTurnsOverStreams) {
  for (int seed = 1; seed <= 8; ++seed) {
    Configure(("one_device=1 seed=" + std::to_string(seed)).c_str());
    SetSeed(static_cast<uint64_t>(seed));
    Connect();
    static_cast<char*>(slots_[1])[0] = 'a';
    // The second one stands on a stream that is free.
    ASSERT_TRUE(Receive(0, 1).ok());
    ASSERT_TRUE(Settle(0).ok());
    auto* second = static_cast<std::byte*>(slots_[0]) + 1;
    ASSERT_TRUE(library_->Receive(comms_[0], 1, second, 1, streams_[1]).ok());
    ASSERT_TRUE(Settle(0).ok());
    cudaStream_t third;
    cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking);
    for (const char c : {'a', 'b'}) {
      static_cast<char*>(slots_[1])[0] = c;
      ASSERT_TRUE(library_->Send(comms_[1], 0, slots_[1], 1, third).ok());
      ASSERT_TRUE(Settle(1).ok());
      EXPECT_EQ(cudaStreamSynchronize(third), cudaSuccess);
    }
    for (cudaStream_t stream : streams_) EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(std::memcmp(slots_[0], "ab", 2), 0);
    cudaStreamDestroy(third);
    for (Comm*& comm : comms_) EXPECT_TRUE(library_->Abort(std::exchange(comm, nullptr)).ok());
  }
}

TEST_F(CommunicatorTest, GroupOfTwoStreamsIsRefused) {
  Connect();
  EXPECT_TRUE(library_->GroupStart().ok());
  EXPECT_TRUE(Send(0, 1).ok());
  EXPECT_TRUE(library_->Receive(comms_[0], 1, slots_[0], 1, streams_[1]).ok());
  EXPECT_THAT(library_->GroupEnd().message(), HasSubstr("two streams"));
}

TEST_F(CommunicatorTest, OtherConfigurationsAndTypesAreRefused) {
  using baton::nccl::Config;
  using baton::nccl::EntryPoints;
  using baton::nccl::Result;
  void* handle = dlopen(BATON_EMULATED_NCCL_LIBRARY, RTLD_NOW);
  const auto init = reinterpret_cast<decltype(EntryPoints::CommInitRankConfig)>(
      dlsym(handle, "ncclCommInitRankConfig"));
  const auto send = reinterpret_cast<decltype(EntryPoints::Send)>(dlsym(handle, "ncclSend"));
  const absl::StatusOr<UniqueId> id = library_->MakeUniqueId();
  for (Config config : {Config{.size = 40, .blocking = 0}, Config{.magic = 1, .blocking = 0},
                        Config{.version = 22304, .blocking = 0}, Config{.blocking = 1}}) {
    Comm* comm;
    EXPECT_EQ(init(&comm, 2, *id, 0, &config), Result::kInvalidArgument);
    EXPECT_EQ(comm, nullptr);
  }
  Config config = {.blocking = 0};
  Comm* comm;
  EXPECT_EQ(init(&comm, 3, *id, 0, &config), Result::kInvalidArgument);
  Connect();
  EXPECT_EQ(send(slots_[0], 1, /*type=*/7, 1, comms_[0], streams_[0]), Result::kInvalidArgument);
}

TEST_F(CommunicatorTest, InitThatHangsIsNeverReadyAndCanBeAborted) {
  Configure("init=hang one_device=1");
  Init();
  for (int i = 0; i < 100; ++i) {
    const absl::StatusOr<bool> state = library_->AsyncState(comms_[0]);
    ASSERT_TRUE(state.ok());
    EXPECT_FALSE(*state);
  }
}

TEST_F(CommunicatorTest, InitThatFailsSaysSo) {
  Configure("init=fail one_device=1");
  Init();
  EXPECT_TRUE(absl::IsUnavailable(Settle(0)));
}

TEST_F(CommunicatorTest, AsynchronousErrorStaysAndTheStreamStandsUntilAbort) {
  Connect();
  Configure("one_device=1 fail=1");
  ASSERT_TRUE(Receive(0, kBytes).ok());
  ASSERT_TRUE(Settle(0).ok());
  cudaEventRecord(events_[0], streams_[0]);
  EXPECT_TRUE(absl::IsUnavailable(WaitUntil("the error", kLimit, [&]() -> absl::StatusOr<bool> {
    EXPECT_EQ(cudaEventQuery(events_[0]), cudaErrorNotReady);
    const absl::StatusOr<bool> state = library_->AsyncState(comms_[0]);
    if (!state.ok()) return state.status();
    return false;
  })));
  EXPECT_EQ(cudaEventQuery(events_[0]), cudaErrorNotReady);
  EXPECT_TRUE(library_->Abort(std::exchange(comms_[0], nullptr)).ok());
  EXPECT_EQ(cudaEventSynchronize(events_[0]), cudaSuccess);
}

TEST_F(CommunicatorTest, LostBytesNeverArriveThoughNobodySaysSo) {
  Connect();
  Configure("one_device=1 lose=1");
  ASSERT_TRUE(Send(1, kBytes).ok());
  ASSERT_TRUE(Settle(1).ok());
  EXPECT_EQ(cudaEventQuery(events_[1]), cudaSuccess);
  ASSERT_TRUE(Receive(0, kBytes).ok());
  ASSERT_TRUE(Settle(0).ok());
  cudaEventRecord(events_[0], streams_[0]);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(cudaEventQuery(events_[0]), cudaErrorNotReady);
  EXPECT_TRUE(*library_->AsyncState(comms_[0]));
}

TEST_F(CommunicatorTest, AbortThatHangsKeepsItsStreamUntilItIsLetGo) {
  Connect();
  ASSERT_TRUE(Receive(0, kBytes).ok());
  ASSERT_TRUE(Settle(0).ok());
  cudaEventRecord(events_[0], streams_[0]);
  Configure("abort=hang one_device=1");
  Comm* const comm = std::exchange(comms_[0], nullptr);
  std::jthread aborting([&] { EXPECT_TRUE(library_->Abort(comm).ok()); });
  absl::Status two_inside;  // A wrong peer is refused too, but later.
  EXPECT_TRUE(WaitUntil("the abort", kLimit, [&] {
                two_inside = library_->Send(comm, -1, slots_[0], 1, streams_[0]);
                return absl::IsFailedPrecondition(two_inside);
              }).ok());
  EXPECT_THAT(two_inside.message(), HasSubstr("ncclSend while another thread is in ncclCommAbort"));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(cudaEventQuery(events_[0]), cudaErrorNotReady);
  Configure("abort=slow abort_ms=1 one_device=1");
  EXPECT_EQ(cudaEventSynchronize(events_[0]), cudaSuccess);
}

TEST_F(CommunicatorTest, AbortedReceiveWritesNothing) {
  Connect();
  std::memset(slots_[0], 1, kBytes);
  std::memset(slots_[1], 2, kBytes);
  const std::vector<char> expected(kBytes, 1);
  ASSERT_TRUE(Receive(0, kBytes).ok());
  ASSERT_TRUE(Settle(0).ok());
  ASSERT_TRUE(Send(1, kBytes).ok());
  ASSERT_TRUE(Settle(1).ok());
  EXPECT_TRUE(library_->Abort(std::exchange(comms_[0], nullptr)).ok());
  // The peer hears of it though the work is still on its stream.
  EXPECT_TRUE(absl::IsUnavailable(WaitUntil("the peer", kLimit, [&]() -> absl::StatusOr<bool> {
    const absl::StatusOr<bool> state = library_->AsyncState(comms_[1]);
    if (!state.ok()) return state.status();
    return false;
  })));
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  EXPECT_EQ(std::memcmp(slots_[0], expected.data(), kBytes), 0);
}

TEST_F(CommunicatorTest, FirstErrorStays) {
  Connect();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(library_->GroupStart().ok());
    for (const int bytes : {1 + 2 * rank, 2 + 2 * rank}) {
      EXPECT_TRUE((rank == 0 ? Send(rank, bytes) : Receive(rank, bytes)).ok());
    }
    EXPECT_TRUE(library_->GroupEnd().ok());
    ASSERT_TRUE(Settle(rank).ok());
    cudaEventRecord(events_[rank], streams_[rank]);
  }
  const absl::Status status = WaitUntil("the error", kLimit, [&]() -> absl::StatusOr<bool> {
    EXPECT_EQ(cudaEventQuery(events_[0]), cudaErrorNotReady);
    const absl::StatusOr<bool> state = library_->AsyncState(comms_[0]);
    if (!state.ok()) return state.status();
    return false;
  });
  EXPECT_THAT(status.message(), AllOf(HasSubstr("ncclSend of 1 bytes"),
                                      HasSubstr("ncclRecv of 3 bytes")));
}

TEST_F(CommunicatorTest, SlotOutsideItsAllocationLosesTheDevice) {
  Connect();
  ASSERT_TRUE(Send(0, kBytes + 4096).ok());
  ASSERT_TRUE(Settle(0).ok());
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaErrorLaunchFailure);
  ResetDevice();
}

TEST_F(CommunicatorTest, WrongCallsAreRefused) {
  Connect();
  Comm* const comm = comms_[0];
  EXPECT_FALSE(library_->Send(comm, 0, slots_[0], 1, streams_[0]).ok());
  EXPECT_FALSE(library_->Send(comm, 2, slots_[0], 1, streams_[0]).ok());
  EXPECT_FALSE(library_->Send(reinterpret_cast<Comm*>(this), 1, slots_[0], 1, streams_[0]).ok());
  EXPECT_FALSE(library_->GroupEnd().ok());
  EXPECT_FALSE(library_->Init(UniqueId(), 0).ok());
  EXPECT_FALSE(library_->Init(*library_->MakeUniqueId(), 2).ok());
  ASSERT_TRUE(Receive(0, kBytes).ok());
  ASSERT_TRUE(Settle(0).ok());
  int other = 0;
  ASSERT_TRUE(Send(1, kBytes).ok());
  ASSERT_TRUE(Settle(1).ok());
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  absl::Status status = library_->Send(comm, 1, slots_[0], 1, &other);
  if (status.ok()) status = Settle(0);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(CommunicatorTest, CommunicatorIsGoneAfterItsEnd) {
  Connect();
  Comm* const comm = std::exchange(comms_[0], nullptr);
  EXPECT_TRUE(library_->Abort(comm).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(library_->Abort(comm)));
  EXPECT_TRUE(absl::IsInvalidArgument(library_->AsyncState(comm).status()));
}

}  // namespace
}  // namespace baton::emulation::nccl
