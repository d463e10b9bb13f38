#include "common/model/device_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/make_device.h"

namespace baton {
namespace {

TEST(DeviceMemoryTest, ACopyHasTheBytesAndAWholeNumberOfUnits) {
  const Processors cpu = *MakeDevice({});
  for (const size_t size : {0, 1, 7, 8, 9, 1000}) {
    std::vector<std::byte> bytes(size);
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
    const absl::StatusOr<Buffer> copy = CopyToDevice(*cpu.device, bytes);
    ASSERT_TRUE(copy.ok());
    EXPECT_EQ(copy->size_bytes(), static_cast<int64_t>((size + 7) / 8 * 8));
    EXPECT_TRUE(size == 0 || std::memcmp(copy->data(), bytes.data(), size) == 0);
  }
}

}  // namespace
}  // namespace baton
