#include "kernels/cuda/cuda_device.h"

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_ops.h"
#include "tests/kernels/cuda/cuda_device_fixture.h"

namespace baton::cuda {
namespace {

TEST_F(CudaDeviceTest, ACopyLandsWhenTheMarkBehindItIsDoneAndNotBefore) {
  int late = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    emulation::SetSeed(seed);
    std::memset(host_.data(), static_cast<int>(seed), 64);
    std::memset(host_.data() + 64, 0, 64);
    Copy(Lane::kCopies, 0, host_.data(), there_.data(), 64);
    Copy(Lane::kCopies, 1, there_.data(), host_.data() + 64, 64);
    const Mark mark = MarkNow(Lane::kCopies);
    EXPECT_EQ(mark.lane, Lane::kCopies);
    late += *device_->IsDone(mark) ? 0 : 1;
    Await(mark);
    EXPECT_EQ(host_.data()[127], static_cast<std::byte>(seed));
    EXPECT_TRUE(*device_->IsDone(mark));
  }
#if !defined(BATON_CUDA_DEVICE)
  EXPECT_GT(late, 20);  // It is done in its time, not when it is enqueued.
#endif
  EXPECT_TRUE(*device_->IsDone(Mark{.lane = Lane::kTransfer}));  // Number 0.
}

TEST_F(CudaDeviceTest, ALaneWaitsForAnotherOnlyWhereItIsTold) {
  int stale = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const bool waits = seed % 2 == 0;
    emulation::SetSeed(seed);
    std::memset(host_.data(), 1, 8);
    std::memset(host_.data() + 8, 2, 8);
    Copy(Lane::kCompute, 0, host_.data(), there_.data(), 8);
    Await(MarkNow(Lane::kCompute));
    Copy(Lane::kCompute, 1, host_.data() + 8, there_.data(), 8);
    const Mark written = MarkNow(Lane::kCompute);
    if (waits) {
      ASSERT_TRUE(device_->After(Lane::kTransfer, written).ok());
    }
    Copy(Lane::kTransfer, 2, there_.data(), host_.data() + 16, 8);
    Await(MarkNow(Lane::kTransfer));
    if (waits) {
      EXPECT_EQ(host_.data()[16], std::byte{2}) << seed;
    }
    stale += host_.data()[16] == std::byte{1};
    Await(written);
    // Of a mark that is known to be done nothing is enqueued.
    EXPECT_TRUE(device_->After(Lane::kTransfer, written).ok());
  }
#if !defined(BATON_CUDA_DEVICE)
  EXPECT_GT(stale, 3);
#endif
}

// More marks than a lane has events, asked in any order.
TEST_F(CudaDeviceTest, MarksComeBackInOrderAndAreNeverTooMany) {
  std::vector<Mark> marks;
  for (int i = 0; i < 1500; ++i) {
    std::memset(host_.data(), 0, 8);
    if (i % 100 == 0) Copy(Lane::kCompute, i / 100, there_.data(), host_.data(), 8);
    marks.push_back(MarkNow(Lane::kCompute));
    EXPECT_EQ(marks.back().number, static_cast<uint64_t>(i) + 1);
  }
  EXPECT_TRUE(*device_->IsDone(marks[1500 - 513]));  // Its event stands for another mark now.
  Await(marks.back());
  for (const Mark mark : marks) EXPECT_TRUE(*device_->IsDone(mark));
  EXPECT_TRUE(device_->After(Lane::kCopies, marks[3]).ok());
}

TEST_F(CudaDeviceTest, MemorySaysHowMuchThereIs) {
  const auto before = device_->Memory();
  ASSERT_TRUE(before.ok());
  const Buffer buffer = Allocate((40 << 20) + 1, MemoryKind::kDevice);
  const auto after = device_->Memory();
  EXPECT_LE(after->free, before->free - (40 << 20));
  EXPECT_EQ(after->total, before->total);
  EXPECT_EQ(after->taken - before->taken, 42 << 20);  // CUDA gives whole granules.
  {
    const Buffer more = Allocate(64 << 20, MemoryKind::kDevice);
    const Buffer host = Allocate(40 << 20, MemoryKind::kPinned);  // None of the GPU's.
    EXPECT_EQ(device_->Memory()->taken - after->taken, 64 << 20);
  }
  EXPECT_EQ(device_->Memory()->taken, after->taken);
  const auto too_much = device_->Allocate(before->total + 1, MemoryKind::kDevice);
  EXPECT_EQ(too_much.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(too_much.status().message().find(std::to_string(before->total + 1)),
            std::string::npos);
  // The device goes on.
  EXPECT_TRUE(device_->Synchronize().ok());
  EXPECT_EQ(Allocate(0, MemoryKind::kDevice).size_bytes(), 0);
}

TEST_F(CudaDeviceTest, RefusesModelsByName) {
  const ModelNeeds good{DType::kBF16, DType::kBF16, 8, 2, 64, 32000};
  EXPECT_TRUE(device_->CheckModel(good).ok());
  const auto refusal = [&](auto change) {
    ModelNeeds needs = good;
    change(needs);
    const absl::Status status = device_->CheckModel(needs);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message()).substr(0, status.message().find(':'));
  };
  EXPECT_EQ(refusal([](auto& n) { n.compute = DType::kF32; }), "compute_dtype = f32");
  EXPECT_EQ(refusal([](auto& n) { n.kv = DType::kF16; }), "kv_dtype = f16");
  EXPECT_EQ(refusal([](auto& n) { n.head_dim = 260; }), "head_dim = 260");
  EXPECT_EQ(refusal([](auto& n) { n.head_dim = 264; }), "head_dim = 264");
  EXPECT_EQ(refusal([](auto& n) { n.head_dim = 0; }), "head_dim = 0");
  EXPECT_EQ(refusal([](auto& n) { n.num_heads = 7; }), "num_heads = 7");
  EXPECT_EQ(refusal([](auto& n) { n.vocab_size = (1 << 19) + 1; }), "vocab_size = 524289");
  ModelNeeds needs = good;
  needs.kv = DType::kFp8E4M3;
  needs.head_dim = 256;
  needs.vocab_size = 1 << 19;
  EXPECT_TRUE(device_->CheckModel(needs).ok());
}

#if !defined(BATON_CUDA_DEVICE)
TEST_F(CudaDeviceTest, SaysWhatItsFastestKernelsDoNotServe) {
  const ModelNeeds good{DType::kBF16, DType::kBF16, 32, 8, 128, 32000, 16};
  const auto slower = [&](auto change) {
    ModelNeeds needs = good;
    change(needs);
    const std::string all = device_->SlowerFor(needs);
    return all.substr(0, all.find(':'));
  };
  EXPECT_EQ(slower([](auto&) {}), "");
  EXPECT_EQ(slower([](auto& n) { n.block_size = 12; }), "attention of prompts");
  EXPECT_EQ(slower([](auto& n) { n.kv = DType::kFp8E4M3; }), "attention of prompts");
  EXPECT_EQ(slower([](auto& n) { n.kv = DType::kFp8E5M2, n.head_dim = 192; }),
            "attention of prompts and decode");
  EXPECT_EQ(slower([](auto& n) { n.num_heads = 32 * 8; }), "attention of decode");
  EXPECT_EQ(slower([](auto& n) { n.head_dim = 72; }), "");
  emulation::SetGpu("sm80");
  EXPECT_EQ(slower([](auto& n) { n.block_size = 12; }), "");
  emulation::SetGpu("sm90");
}
#endif

TEST_F(CudaDeviceTest, SaysWhatItIs) {
  EXPECT_FALSE(device_->info().unified);
  EXPECT_TRUE(device_->info().has_graphs);
  EXPECT_EQ(device_->FastestCompute(DType::kF32), DType::kBF16);
  EXPECT_EQ(device_->FastestCompute(DType::kF16), DType::kF16);
  EXPECT_EQ(device_->Activations(DType::kF16), DType::kF16);
#if !defined(BATON_CUDA_DEVICE)
  EXPECT_EQ(device_->info().name, "emulated sm_90");
  EXPECT_EQ(device_->Arithmetic(DType::kBF16), "cuda-emulated-sm90.1");
#endif
  EXPECT_EQ(MakeCudaDevice(99).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeCudaDevice(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

// A row may need it, which only the device can look at.
TEST_F(CudaDeviceTest, NoTokenIsChosenWithoutScratch) {
  const float logit = 0;
  const SampleRow row;
  SampleResult result;
  const absl::Status status = device_->ops().Sample({.logits = &logit,
                                                     .logits_stride = 1,
                                                     .vocab_size = 1,
                                                     .rows = &row,
                                                     .num_rows = 1,
                                                     .results = &result});
  EXPECT_EQ(status, absl::InvalidArgumentError("adjusted = null: must point to data"));
}

TEST_F(CudaDeviceTest, AGraphCopiesAgainWhatIsThereThen) {
  *pieces_.array<CopyPiece>() = {host_.data(), there_.data(), 8};
  auto graph = device_->Capture(
      [&] { return device_->CopyPieces(Lane::kCompute, {pieces_.array<CopyPiece>(), 1}); });
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const int value : {1, 2}) {
    std::memset(host_.data(), value, 8);
    ASSERT_TRUE(device_->Launch(**graph).ok());
    Copy(Lane::kCompute, 1, there_.data(), host_.data() + 8, 8);
    Await(MarkNow(Lane::kCompute));
    EXPECT_EQ(host_.data()[8], static_cast<std::byte>(value));
  }
  // What fails in it fails the capture, and the stream goes on.
  EXPECT_EQ(device_->Capture([] { return absl::InternalError("no"); }).status().message(), "no");
  EXPECT_FALSE(device_->Capture([&] { return device_->Synchronize(); }).ok());
  Await(MarkNow(Lane::kCompute));
}

// Partials of so many heads would not fit the memory that a device has for them.
TEST_F(CudaDeviceTest, AttentionThatIsTooLargeToBeSplitIsNot) {
  constexpr int32_t kSequences = 64, kHeads = 64, kDim = 256, kKeys = 5, kBlock = 8;
  const std::vector<int32_t> ones(kSequences, kKeys), table(kSequences);
  std::vector<int32_t> first(kSequences + 1);
  for (int32_t s = 0; s <= kSequences; ++s) first[s] = s;
  const DeviceArray<int32_t> lens(ones), tables(table), queries(first);
  const DeviceFloats q(DType::kBF16, std::vector<float>(kSequences * kHeads * kDim, 1));
  const DeviceFloats k(DType::kBF16, std::vector<float>(kBlock * kDim, 1));
  const DeviceFloats v(DType::kBF16, std::vector<float>(kBlock * kDim, 3));
  const DeviceFloats out(DType::kBF16, kSequences * kHeads * kDim);
  VarlenAttentionArgs args{.q = q,
                           .q_stride = kHeads * kDim,
                           .num_heads = kHeads,
                           .num_seqs = kSequences,
                           .cu_seqlens_q = queries.data(),
                           .num_tokens = kSequences,
                           .max_seqlen_q = 1,
                           .seq_lens = lens.data(),
                           .max_seqlen_k = 9 * 512,
                           .block_table = tables.data(),
                           .max_blocks = 1};
  args.k_cache = {.dtype = DType::kBF16,
                  .num_blocks = 1,
                  .num_heads = 1,
                  .block_size = kBlock,
                  .dim = kDim,
                  .block_stride = kBlock * kDim};
  args.v_cache = args.k_cache;
  args.k_cache.data = static_cast<std::byte*>(k.data());
  args.v_cache.data = static_cast<std::byte*>(v.data());
  args.round_to = DType::kBF16;
  args.out = out;
  args.out_stride = kHeads * kDim;
  ASSERT_GT(ScratchBytes(args), int64_t{32} << 20);
  const absl::Status status = device_->ops().VarlenAttention(args);
  ASSERT_TRUE(status.ok()) << status;
  for (const float x : out.Read()) ASSERT_EQ(x, 3);
}

// Also for what CUDA would free beneath a copy.
TEST_F(CudaDeviceTest, SynchronizeWaitsForEveryLane) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    emulation::SetSeed(seed);
    std::memset(host_.data(), 0, 64 * kNumLanes);
    std::memset(host_.data() + 1024, static_cast<int>(seed), 64);
    for (int lane = 0; lane < kNumLanes; ++lane) {
      Copy(static_cast<Lane>(lane), lane, host_.data() + 1024, host_.data() + 64 * lane, 64);
    }
    ASSERT_TRUE(device_->Synchronize().ok());
    for (int lane = 0; lane < kNumLanes; ++lane) {
      EXPECT_EQ(host_.data()[64 * lane + 63], static_cast<std::byte>(seed)) << "lane " << lane;
    }
  }
}

// More than the ring of a lane holds, of which nobody asks.
TEST_F(CudaDeviceTest, ManyMarksMayBeOpen) {
  Copy(Lane::kCompute, 0, host_.data(), there_.data(), 8);
  Mark last;
  for (int i = 0; i < 1300; ++i) last = MarkNow(Lane::kCompute);
  EXPECT_EQ(last.number, MarkNow(Lane::kCompute).number - 1);
  Await(last);
}

#if !defined(BATON_CUDA_DEVICE)

TEST_F(CudaDeviceTest, ALostDeviceIsUnavailableForEver) {
  Copy(Lane::kCompute, 0, host_.data(), there_.data(), 8);
  const Mark mark = MarkNow(Lane::kCompute);
  emulation::LoseInKernel(1);
  const absl::Status status = Wait(*device_, mark, kLimit);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("the GPU is lost"), std::string::npos) << status;
  EXPECT_NE(status.message().find("CopyPiecesKernel"), std::string::npos) << status;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(device_->MarkNow(Lane::kCopies).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(device_->IsDone(mark).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(device_->Synchronize().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(device_->CopyPieces(Lane::kCompute, {pieces_.array<CopyPiece>(), 1}).code(),
              absl::StatusCode::kUnavailable);
    EXPECT_EQ(device_->Allocate(8, MemoryKind::kDevice).status().code(),
              absl::StatusCode::kUnavailable);
    EXPECT_EQ(device_->After(Lane::kCopies, mark).code(), absl::StatusCode::kUnavailable);
  }
  emulation::ResetDevice();
}

// Of a GPU that is full the load says so, not the first step of each size.
TEST_F(CudaDeviceTest, AGraphHasItsMemoryWhenItIsCaptured) {
  const auto free = [&] { return device_->Memory()->free; };
  const int64_t before = free();
  auto graph = device_->Capture([] { return absl::OkStatus(); });
  ASSERT_TRUE(graph.ok()) << graph.status();
  const int64_t captured = free();
  EXPECT_LT(captured, before);
  ASSERT_TRUE(device_->Launch(**graph).ok());
  EXPECT_EQ(free(), captured);
  {
    const auto another = device_->Capture([] { return absl::OkStatus(); });
    EXPECT_LT(free(), captured);
  }
  EXPECT_EQ(free(), captured);  // It took its memory along.
  emulation::SetDeviceMemory(device_->Memory()->total - captured);
  EXPECT_EQ(device_->Capture([] { return absl::OkStatus(); }).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(device_->Launch(**graph).ok());
  emulation::SetDeviceMemory(size_t{8} << 30);
}

TEST_F(CudaDeviceTest, EachCallThatFailsSaysSo) {
  const Mark mark = MarkNow(Lane::kCompute);
  const auto failing = [&](int call, auto body) {
    emulation::FailCall(call, cudaErrorLaunchFailure);
    EXPECT_EQ(body(), absl::StatusCode::kUnavailable);
    emulation::ResetDevice();
  };
  failing(1, [&] { return device_->MarkNow(Lane::kCompute).status().code(); });
  failing(1, [&] { return device_->IsDone(mark).status().code(); });
  failing(1, [&] { return device_->Memory().status().code(); });
  failing(1, [&] { return device_->Allocate(1, MemoryKind::kPinned).status().code(); });
  failing(1, [&] { return device_->Synchronize().code(); });
  failing(1, [&] { return device_->After(Lane::kCopies, mark).code(); });
  for (const int call : {1, 2, 3, 5}) {  // It begins, ends, is made ready and uploaded.
    failing(call, [&] {
      return device_->Capture([] { return absl::OkStatus(); }).status().code();
    });
  }
  auto graph = device_->Capture([] { return absl::OkStatus(); });
  ASSERT_TRUE(graph.ok()) << graph.status();
  failing(1, [&] { return device_->Launch(**graph).code(); });
  emulation::FailCall(5, cudaErrorMemoryAllocation);
  EXPECT_EQ(device_->Capture([] { return absl::OkStatus(); }).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(device_->Synchronize().ok());
}

#endif

}  // namespace
}  // namespace baton::cuda
