#include "kernels/api/buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

namespace baton {
namespace {

TEST(BufferTest, AHalfIsNeverTakenForAFloat) {
  const absl::StatusOr<Buffer> buffer = AllocateHost(64);
  ASSERT_TRUE(buffer.ok());
  EXPECT_DEATH((void)buffer->floats(DType::kBF16).f32(), "check failed");
  EXPECT_EQ(static_cast<void*>(buffer->floats(DType::kF32).f32()), buffer->data());
}

TEST(BufferTest, APlaceBehindTheEndIsRefused) {
  const absl::StatusOr<Buffer> buffer = AllocateHost(64);
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer->size_bytes(), 64);
  EXPECT_EQ(buffer->floats(DType::kBF16, 32).data, buffer->data() + 64);
  EXPECT_DEATH(buffer->floats(DType::kBF16, 33), "check failed");
  EXPECT_DEATH(buffer->floats(DType::kF32, -1), "check failed");
  EXPECT_EQ(reinterpret_cast<std::byte*>(buffer->array<int64_t>(56)), buffer->data() + 56);
  EXPECT_DEATH(buffer->array<int64_t>(72), "check failed");
  EXPECT_DEATH(buffer->array<int64_t>(-8), "check failed");
  EXPECT_DEATH(buffer->array<int64_t>(4), "check failed");  // Not aligned.
}

TEST(BufferTest, TheLastOwnerFrees) {
  int frees = 0;
  std::byte bytes[8];
  {
    Buffer a(bytes, 8, std::shared_ptr<void>(bytes, [&](void*) { ++frees; }));
    Buffer b(std::move(a));
    EXPECT_EQ(a.data(), nullptr);  // NOLINT: what is left of it is empty.
    EXPECT_EQ(a.size_bytes(), 0);
    Buffer c;
    c = std::move(b);
    EXPECT_EQ(c.data(), bytes);
    EXPECT_EQ(frees, 0);
    c = Buffer();
    EXPECT_EQ(frees, 1);
  }
  EXPECT_EQ(frees, 1);
}

TEST(BufferTest, HostMemoryIsAlignedToLinesPagesAndHugePages) {
  for (const auto& [bytes, alignment] :
       {std::pair<int64_t, uintptr_t>{0, 64}, {1, 64}, {4095, 64}, {4096, 4096}, {5000, 4096},
        {int64_t{2} << 20, uintptr_t{2} << 20}, {int64_t{5} << 20, uintptr_t{2} << 20}}) {
    const absl::StatusOr<Buffer> buffer = AllocateHost(bytes);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % alignment, 0u) << bytes;
    EXPECT_EQ(buffer->size_bytes(), bytes);
    std::memset(buffer->data(), 0xff, static_cast<size_t>(bytes));
  }
}

TEST(BufferTest, MemoryThatCannotBeHadIsAnErrorWithTheSize) {
  const absl::StatusOr<Buffer> buffer = AllocateHost(int64_t{1} << 60);
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(buffer.status().message(), "cannot allocate 1152921504606846976 bytes");
}

}  // namespace
}  // namespace baton
