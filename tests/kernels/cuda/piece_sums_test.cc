#include "kernels/cuda/piece_sums.h"

#include <cstring>
#include <vector>

#include "common/base/random.h"
#include "tests/kernels/cuda/cuda_device_fixture.h"

namespace baton::cuda {
namespace {

constexpr int64_t kBytes = 20'000;

// As copy_piece.h says.
uint64_t SumOf(const std::vector<std::byte>& bytes, int64_t first, int64_t count) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < count / 4; ++i) {
    uint64_t z = (i + 1) * 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    uint32_t word;
    std::memcpy(&word, bytes.data() + first + 4 * i, 4);
    sum += word * ((z ^ (z >> 31)) | 1);
  }
  return sum;
}

class PieceSumsTest : public CudaDeviceTest {
 protected:
  void SetUp() override {
    CudaDeviceTest::SetUp();
    from_ = Allocate(kBytes, MemoryKind::kPinned);
    there_ = Allocate(kBytes, MemoryKind::kDevice);
    sums_ = Allocate(64 * sizeof(uint64_t), MemoryKind::kPinned);
    list_ = Allocate(64 * sizeof(SummedPiece), MemoryKind::kPinned);
    Random random(3);
    bytes_.resize(kBytes);
    for (std::byte& b : bytes_) b = static_cast<std::byte>(random.Next());
  }
  std::vector<uint64_t> SumsOf(const std::vector<std::pair<int64_t, int64_t>>& ranges) {
    std::memcpy(from_.data(), bytes_.data(), kBytes);
    Copy(Lane::kTransfer, 0, from_.data(), there_.data(), kBytes);
    auto* list = list_.array<SummedPiece>();
    auto* sums = sums_.array<uint64_t>();
    for (size_t i = 0; i < ranges.size(); ++i) {
      list[i] = {there_.data() + ranges[i].first, ranges[i].second, sums + i};
    }
    EXPECT_TRUE(device_->SumPieces(Lane::kTransfer, {list, ranges.size()}).ok());
    Await(MarkNow(Lane::kTransfer));
    return {sums, sums + ranges.size()};
  }

  std::vector<std::byte> bytes_;
  Buffer from_, sums_, list_;
};

TEST_F(PieceSumsTest, SumsAreThoseOfTheDefinitionForAnySizeAndPlace) {
  const std::vector<std::pair<int64_t, int64_t>> ranges = {
      {0, 4}, {4, 8}, {8, 0}, {12, 252}, {0, 1024}, {1024, 1028}, {4, 4 * 1023}, {0, kBytes}};
  const std::vector<uint64_t> sums = SumsOf(ranges);
  for (size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_EQ(sums[i], SumOf(bytes_, ranges[i].first, ranges[i].second)) << i;
  }
}

TEST_F(PieceSumsTest, AFlippedBitAndWordsThatChangePlacesAreSeen) {
  const uint64_t whole = SumsOf({{0, kBytes}})[0];
  bytes_[kBytes - 1] ^= std::byte{0x80};
  EXPECT_NE(SumsOf({{0, kBytes}})[0], whole);
  bytes_[kBytes - 1] ^= std::byte{0x80};
  for (int i = 0; i < 4; ++i) std::swap(bytes_[400 + i], bytes_[4400 + i]);
  EXPECT_NE(SumsOf({{0, kBytes}})[0], whole);
}

TEST_F(PieceSumsTest, NoPiecesAreNoLaunch) {
  EXPECT_TRUE(device_->SumPieces(Lane::kTransfer, {}).ok());
}

}  // namespace
}  // namespace baton::cuda
