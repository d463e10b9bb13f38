#include "kernels/cuda/weight_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/floats.h"
#include "kernels/cuda/weights.h"
#include "tests/kernels/cuda/shrinking_file.h"
#include "tests/unit/common/base/populating_kernel.h"

namespace baton::cuda {
namespace {

constexpr std::byte kCanary{0xa5};
constexpr DType kStored[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr DType kKept[] = {DType::kBF16, DType::kF16};

float NumberAt(DType dtype, const std::byte* at) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, SizeOf(dtype));
  if (dtype == DType::kF32) return FromBits(bits);
  const auto half = static_cast<uint16_t>(bits);
  return dtype == DType::kBF16 ? ToFloat(Bf16{half}) : ToFloat(F16{half});
}
uint16_t Kept(DType dtype, float x) {
  return dtype == DType::kBF16 ? FromFloat<Bf16>(x).bits : FromFloat<F16>(x).bits;
}

// Any bits but those of NaNs, which a matrix has none of.
std::vector<std::byte> AnyNumbers(DType dtype, int64_t count) {
  std::vector<std::byte> bytes(count * SizeOf(dtype));
  uint32_t state = 12345;
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = state = state * 1664525u + 1013904223u;
    bits = dtype == DType::kF32 ? bits & 0xbfffffffu : (bits >> 16 & 0xbfffu);
    std::memcpy(bytes.data() + i * SizeOf(dtype), &bits, SizeOf(dtype));
  }
  return bytes;
}

std::vector<std::byte> Copied(const WeightRowsArgs& args) {
  const int64_t bytes = args.count * RowStride(args.k) * 2;
  std::vector<std::byte> out(bytes + 64, kCanary);
  const absl::Status status = CopyWeightRows(args, out.data());
  EXPECT_TRUE(status.ok()) << status;
  for (size_t i = bytes; i < out.size(); ++i) EXPECT_EQ(out[i], kCanary);
  out.resize(bytes);
  return out;
}

// One number after the other, as floats.h says.
std::vector<std::byte> Expected(const WeightRowsArgs& args) {
  const int64_t stride = RowStride(args.k);
  std::vector<uint16_t> out(args.count * stride, 0);
  for (int64_t row = 0; row < args.count; ++row) {
    const std::byte* const from = args.part.Row(args.first + row, args.k);
    for (int64_t i = 0; i < args.k; ++i) {
      const std::byte* const at = from + i * SizeOf(args.part.dtype);
      uint16_t bits = 0;
      if (args.part.dtype == args.dtype) {
        std::memcpy(&bits, at, 2);
      } else {
        bits = Kept(args.dtype, NumberAt(args.part.dtype, at));
      }
      out[row * stride + i] = bits;
    }
  }
  std::vector<std::byte> bytes(out.size() * 2);
  std::memcpy(bytes.data(), out.data(), bytes.size());
  return bytes;
}

TEST(WeightRowsTest, ThreadsShareRowsOfAnyLengthStrideAndType) {
  ThreadPool four(4);
  // Rows of a task, more than those, and longer than one.
  for (const int64_t k : {1, 7, 8, 13, 192, 1000, 70001}) {
    const int64_t rows = k > 1000 ? 3 : 3 * (int64_t{128} << 10) / (2 * RowStride(k)) + 5;
    for (const int64_t width : {k, k + 9}) {
      for (const DType stored : kStored) {
        const std::vector<std::byte> file = AnyNumbers(stored, (rows + 1) * width);
        const WeightRows part{file.data(), stored, rows, width == k ? 0 : width};
        for (const DType kept : kKept) {
          WeightRowsArgs args{.part = part, .first = 1, .count = rows - 1, .k = k, .dtype = kept};
          const std::vector<std::byte> expected = Expected(args);
          for (ThreadPool* const threads : {static_cast<ThreadPool*>(nullptr), &four}) {
            args.threads = threads;
            ASSERT_TRUE(Copied(args) == expected)
                << k << " of " << width << " " << ToString(stored) << " to " << ToString(kept);
          }
        }
      }
    }
  }
}

// As a bytewise shifted file has them.
TEST(WeightRowsTest, NumbersMayLieAtAnyByte) {
  const std::vector<std::byte> numbers = AnyNumbers(DType::kF32, 64);
  std::vector<std::byte> file(numbers.size() + 1);
  std::memcpy(file.data() + 1, numbers.data(), numbers.size());
  const WeightRows part{file.data() + 1, DType::kF32, 4};
  const WeightRowsArgs args{.part = part, .count = 4, .k = 16};
  EXPECT_EQ(Copied(args), Expected(args));
}

TEST(WeightRowsTest, AFileThatHasBecomeShorterIsAnErrorOfEveryNumberOfThreads) {
  constexpr int64_t kRows = 3000, kColumns = 512;
  ShrinkingFile file(AnyNumbers(DType::kBF16, kRows * kColumns));
  file.ShrinkTo(1 << 20);
  if (!KernelFindsUnreadablePages()) GTEST_SKIP() << "a kernel without MADV_POPULATE_READ";
  const WeightRows part{file.data(), DType::kBF16, kRows};
  std::vector<std::byte> out(kRows * kColumns * 2);
  for (const int threads : {1, 4}) {
    ThreadPool pool(threads);
    const WeightRowsArgs all{.part = part, .count = kRows, .k = kColumns, .threads = &pool};
    EXPECT_EQ(CopyWeightRows(all, out.data()).code(), absl::StatusCode::kDataLoss);
    const WeightRowsArgs left{.part = part, .count = 1000, .k = kColumns, .threads = &pool};
    EXPECT_TRUE(CopyWeightRows(left, out.data()).ok());
  }
}

}  // namespace
}  // namespace baton::cuda
