#include "kernels/cuda/cuda_weights.h"

#include <cstring>
#include <vector>

#include "tests/kernels/cuda/cuda_device_fixture.h"
#include "tests/kernels/cuda/shrinking_file.h"
#include "tests/unit/common/base/populating_kernel.h"

namespace baton::cuda {
namespace {

// What a product with an identity gives back: the weights as the device keeps them.
class PackTest : public CudaDeviceTest {
 protected:
  std::vector<float> Unpacked(const PackedMatrix& matrix) {
    const int64_t n = matrix.n(), k = matrix.k();
    std::vector<int32_t> ids(n);
    for (int64_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(i);
    const DeviceArray<int32_t> rows(ids);
    const DeviceFloats out(DType::kF32, n * k);
    EXPECT_TRUE(device_->Synchronize().ok());
    EXPECT_TRUE(device_->ops()
                    .Embedding({.shards = {&matrix},
                                .tokens = rows.data(),
                                .num_tokens = n,
                                .out = {out.data(), DType::kF32}})
                    .ok());
    Await(MarkNow(Lane::kCompute));
    return out.Read();
  }
  // With what lies behind each row.
  std::vector<float> Kept(const PackedMatrix& matrix) {
    EXPECT_TRUE(device_->Synchronize().ok());
    std::vector<std::byte> bytes(matrix.size_bytes());
    EXPECT_EQ(cudaMemcpy(bytes.data(), matrix.data(), bytes.size(), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return DeviceFloats::Decode(matrix.dtype(), bytes);
  }
};

TEST_F(PackTest, RoundsPartsToTheComputeDtypeAndPadsRows) {
  for (const DType compute : {DType::kBF16, DType::kF16}) {
    for (const int64_t k : {1, 13, 64}) {
      std::vector<float> expected;
      std::vector<std::vector<std::byte>> files;
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        const auto values = RandomFloats(static_cast<uint64_t>(k), 5 * k);
        files.push_back(Encode(dtype, values));
        const auto kept = DeviceFloats::Decode(
            compute, Encode(compute, DeviceFloats::Decode(dtype, files.back())));
        expected.insert(expected.end(), kept.begin(), kept.end());
      }
      const WeightRows parts[] = {{files[0].data(), DType::kF32, 5},
                                  {files[1].data(), DType::kBF16, 5},
                                  {files[2].data(), DType::kF16, 5}};
      auto matrix = device_->Pack({.parts = parts, .num_parts = 3, .k = k, .compute = compute});
      ASSERT_TRUE(matrix.ok()) << matrix.status();
      EXPECT_EQ(matrix->n(), 15);
      EXPECT_EQ(matrix->dtype(), compute);
      EXPECT_EQ(matrix->size_bytes(), 15 * ((k + 7) / 8 * 8) * 2);
      EXPECT_EQ(Unpacked(*matrix), expected) << k;
      const std::vector<float> kept = Kept(*matrix);
      for (int64_t i = 0; i < std::ssize(kept); ++i) {
        if (i % RowStride(k) >= k) {
          EXPECT_EQ(kept[i], 0) << i;
        }
      }
    }
  }
}

// As a rank reads its columns of a matrix.
TEST_F(PackTest, ColumnsOfAWiderMatrix) {
  const int64_t n = 5, width = 40, first = 7, k = 21;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::vector<float> values = Rounded(DType::kBF16, RandomFloats(1, n * width));
    const std::vector<std::byte> file = Encode(dtype, values);
    std::vector<float> expected;
    for (int64_t row = 0; row < n; ++row) {
      const auto at = values.begin() + row * width + first;
      expected.insert(expected.end(), at, at + k);
    }
    WeightRows part{file.data() + first * SizeOf(dtype), dtype, n, width};
    auto matrix =
        device_->Pack({.parts = &part, .num_parts = 1, .k = k, .compute = DType::kBF16});
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    EXPECT_EQ(Unpacked(*matrix), expected) << ToString(dtype);
    part.row_stride = k - 1;
    EXPECT_EQ(device_->Pack({.parts = &part, .num_parts = 1, .k = k}).status().message(),
              "parts[0].row_stride = 20: must be at least 21");
  }
}

TEST_F(PackTest, UntoldKeepsF16OnlyWhereAllPartsAreF16) {
  const auto values = Encode(DType::kF16, RandomFloats(1, 16));
  const WeightRows f16{values.data(), DType::kF16, 1}, bf16{values.data(), DType::kBF16, 1};
  const auto type_of = [&](WeightRows first, WeightRows second) {
    const WeightRows parts[] = {first, second};
    return device_->Pack({.parts = parts, .num_parts = 2, .k = 8})->dtype();
  };
  EXPECT_EQ(type_of(f16, f16), DType::kF16);
  EXPECT_EQ(type_of(f16, bf16), DType::kBF16);
  EXPECT_EQ(type_of(bf16, f16), DType::kBF16);
}

// Through chunks that are used again before the first ones were asked about.
TEST_F(PackTest, MoreThanTheChunksHoldByAnyNumberOfThreads) {
  constexpr int64_t kRows = 6000, kColumns = 1000;
  const auto values = RandomFloats(5, kRows * kColumns);
  const auto file = Encode(DType::kBF16, values);
  const WeightRows part{file.data(), DType::kBF16, kRows};
  for (const int num_threads : {1, 4}) {
    ThreadPool threads(num_threads);
    auto matrix = device_->PackBy(threads, {.parts = &part, .num_parts = 1, .k = kColumns});
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    const Buffer back = Allocate(matrix->size_bytes(), MemoryKind::kPinned);
    Copy(Lane::kCopies, 0, matrix->data(), back.data(), matrix->size_bytes());
    Await(MarkNow(Lane::kCopies));
    EXPECT_EQ(std::memcmp(back.data(), file.data(), file.size()), 0);
  }
}

// Amid the third chunk, while those before it are copied.
TEST_F(PackTest, AFileThatHasBecomeShorterLeavesNothingBehind) {
  constexpr int64_t kRows = 4000, kColumns = 1000;
  const auto file = Encode(DType::kBF16, RandomFloats(5, kRows * kColumns));
  ShrinkingFile mapped(file);
  mapped.ShrinkTo(5 << 20);
  if (!KernelFindsUnreadablePages()) GTEST_SKIP() << "a kernel without MADV_POPULATE_READ";
  const WeightRows shrunk{mapped.data(), DType::kBF16, kRows},
      whole{file.data(), DType::kBF16, kRows};
  ThreadPool threads(4);
  const auto pack = [&](const WeightRows& part) {
    return device_->PackBy(threads, {.parts = &part, .num_parts = 1, .k = kColumns});
  };
  const int64_t taken = device_->Memory()->taken;
  EXPECT_EQ(pack(shrunk).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(device_->Memory()->taken, taken);
  auto matrix = pack(whole);
  ASSERT_TRUE(matrix.ok()) << matrix.status();
  EXPECT_TRUE(Kept(*matrix) == DeviceFloats::Decode(DType::kBF16, file));
}

TEST_F(PackTest, ARowLongerThanAChunk) {
  constexpr int64_t kLength = (int64_t{5} << 20) / 2 + 3;
  const std::vector<float> row = Rounded(DType::kBF16, RandomFloats(3, kLength));
  const WeightRows part{reinterpret_cast<const std::byte*>(row.data()), DType::kF32, 1};
  for (int i = 0; i < 4; ++i) {  // There are chunks already, of the usual size.
    ASSERT_TRUE(device_->Pack({.parts = &part, .num_parts = 1, .k = 8}).ok());
  }
  const auto packed =
      device_->Pack({.parts = &part, .num_parts = 1, .k = kLength, .compute = DType::kBF16});
  ASSERT_TRUE(packed.ok()) << packed.status();
  std::vector<float> kept = Kept(*packed);
  kept.resize(kLength);
  EXPECT_TRUE(kept == row);
}

#if !defined(BATON_CUDA_DEVICE)
// Threads fill the chunks behind the copy in which it goes.
TEST_F(PackTest, ADeviceThatIsLostMeanwhileIsUnavailable) {
  constexpr int64_t kRows = 6000, kColumns = 1000;
  const std::vector<std::byte> file(2 * kRows * kColumns);
  const WeightRows part{file.data(), DType::kBF16, kRows};
  ThreadPool threads(4);
  emulation::LoseInKernel(2);
  EXPECT_EQ(
      device_->PackBy(threads, {.parts = &part, .num_parts = 1, .k = kColumns}).status().code(),
      absl::StatusCode::kUnavailable);
  emulation::ResetDevice();
}

// As many experts have: CUDA is asked for a few large pieces, and a load that fails leaves nothing.
TEST_F(PackTest, ManySmallMatricesTakeFewPiecesWhichAFailedLoadGivesBack) {
  constexpr int64_t kRows = 100, kColumns = 500;
  const auto values = Encode(DType::kBF16, RandomFloats(1, kRows * kColumns));
  const WeightRows part{values.data(), DType::kBF16, kRows};
  const auto pack = [&] { return device_->Pack({.parts = &part, .num_parts = 1, .k = kColumns}); };
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(pack().ok());  // Now it has its chunks.
  const DeviceMemory before = *device_->Memory();
  const int64_t allocations = emulation::GetStatistics().allocations;
  emulation::SetDeviceMemory(before.total - before.free + (80 << 20));
  int64_t bytes = 0;
  {
    std::vector<PackedMatrix> matrices;
    auto matrix = pack();
    for (; matrix.ok(); matrix = pack()) {
      bytes += matrix->size_bytes();
      EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix->data()) % 256, 0u);
      matrices.push_back(*std::move(matrix));
    }
    EXPECT_EQ(matrix.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(device_->Memory()->taken - before.taken, 80 << 20);
    EXPECT_GT(matrices.size(), 700u);
    EXPECT_GT(bytes, 70 << 20);
    EXPECT_LT(emulation::GetStatistics().allocations - allocations - std::ssize(matrices), 20);
    for (const PackedMatrix* kept : {&matrices.front(), &matrices[500], &matrices.back()}) {
      EXPECT_EQ(Kept(*kept), Kept(matrices[1]));
    }
  }
  emulation::SetDeviceMemory(before.total);
  EXPECT_EQ(device_->Memory()->free, before.free);
  EXPECT_EQ(device_->Memory()->taken, before.taken);
}
#endif

TEST_F(PackTest, RefusesWhatIsNoMatrix) {
  const std::byte byte{};
  const WeightRows fp8{&byte, DType::kFp8E4M3, 1};
  EXPECT_FALSE(device_->Pack({.parts = &fp8, .num_parts = 1, .k = 1}).ok());
  EXPECT_FALSE(device_->Pack({.parts = &fp8, .num_parts = 0, .k = 1}).ok());
  const PackedMatrix foreign;
  EXPECT_EQ(device_->ops().Embedding({.shards = {&foreign}}).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device_->ops().Gemm({.weights = &foreign}).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::cuda
