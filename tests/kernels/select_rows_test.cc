// SelectRows of every device.
#include <cstring>
#include <vector>

#include "tests/kernels/op_cases.h"

namespace baton {
namespace {

using SelectRowsTest = OpTest;

// In any order and twice, with and without vectors.
TEST_P(SelectRowsTest, RowsAreCopiedByTheirNumberAndNothingElseIs) {
  const std::vector<int32_t> rows = {4, 0, 4, 6, 1};
  const int64_t size = SizeOf(in_);
  for (const int64_t dim : {1, 7, 16, 129, 520}) {
    for (const int64_t pad : {0, 3, 8}) {
      const int64_t from_stride = dim + pad, to_stride = dim + 2 * pad;
      std::vector<std::byte> from(7 * from_stride * size);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 37 + i / 256);
      std::vector<std::byte> to(5 * to_stride * size, std::byte{0xee}), expected = to;
      for (int64_t i = 0; i < 5; ++i) {
        std::memcpy(&expected[i * to_stride * size], &from[rows[i] * from_stride * size],
                    dim * size);
      }
      ASSERT_EQ(
          ops_->SelectRows(
              {{from.data(), in_}, from_stride, rows.data(), 5, dim, {to.data(), in_}, to_stride}),
          absl::OkStatus());
      EXPECT_EQ(to, expected) << dim << ", " << pad;
    }
  }
}

BATON_FOR_EACH_OP_CASE(SelectRowsTest, OpCasesOfOneType());

}  // namespace
}  // namespace baton
