#include "common/base/crc32c.h"

#include <string_view>
#include <vector>

#include "common/base/random.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

std::span<const std::byte> Bytes(std::string_view s) { return std::as_bytes(std::span(s)); }

// RFC 3720 appendix B.4, and the check value of the CRC catalogue.
TEST(Crc32cTest, GivesTheKnownValues) {
  std::vector<std::byte> data(32);
  EXPECT_EQ(Crc32c(data), 0x8A9136AAu);
  std::fill(data.begin(), data.end(), std::byte{0xFF});
  EXPECT_EQ(Crc32c(data), 0x62A8AB43u);
  for (size_t i = 0; i < 32; ++i) data[i] = static_cast<std::byte>(i);
  EXPECT_EQ(Crc32c(data), 0x46DD794Eu);
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283u);
  EXPECT_EQ(Crc32c({}), 0u);
}

TEST(Crc32cTest, InstructionAndTableAgreeAtEveryLengthAndAlignment) {
  if (!HasCrc32cInstruction()) {
    EXPECT_EQ(ExtendCrc32cTable(0, Bytes("123456789")), 0xE3069283u);
    return;
  }
  Random random(1);
  std::vector<std::byte> data(8192);  // Twice what goes by three at once, and more.
  for (std::byte& b : data) b = static_cast<std::byte>(random.Next());
  for (int i = 0; i < 4000; ++i) {
    const size_t first = random.Below(64);
    const size_t size = i < 300 ? i : random.Below(data.size() - first);
    const auto part = std::span<const std::byte>(data).subspan(first, size);
    const uint32_t seed = static_cast<uint32_t>(random.Next());
    ASSERT_EQ(ExtendCrc32cInstruction(seed, part), ExtendCrc32cTable(seed, part)) << size;
  }
}

TEST(Crc32cTest, ExtendingIsTheSumOfTheParts) {
  Random random(2);
  std::vector<std::byte> data(1000);
  for (std::byte& b : data) b = static_cast<std::byte>(random.Next());
  const std::span<const std::byte> all(data);
  for (size_t cut = 0; cut <= data.size(); cut += 7) {
    ASSERT_EQ(ExtendCrc32c(Crc32c(all.first(cut)), all.subspan(cut)), Crc32c(all));
  }
}

TEST(Crc32cTest, SeesEveryFlippedBit) {
  std::vector<std::byte> data(300, std::byte{0x5A});
  const uint32_t good = Crc32c(data);
  for (size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_NE(Crc32c(data), good);
    data[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
}

}  // namespace
}  // namespace baton
