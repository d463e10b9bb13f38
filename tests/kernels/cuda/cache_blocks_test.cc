#include <vector>

#include "kernels/cuda/cache.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

// Planes of one shape, on the host and on the device with the same random bytes.
class Cache {
 public:
  Cache(const CachePlane& shape, int num_planes, uint64_t seed, size_t shift = 0) {
    Random random(seed);
    host_.resize(num_planes);
    for (auto& plane : host_) {
      plane.resize(shape.num_blocks * shape.block_stride * SizeOf(shape.dtype));
      for (std::byte& b : plane) b = static_cast<std::byte>(random.Next());
      device_.push_back(std::make_unique<DeviceBytes>(plane, shift));
      host_planes.push_back(shape);
      host_planes.back().data = plane.data();
      device_planes.push_back(shape);
      device_planes.back().data = static_cast<std::byte*>(device_.back()->data());
    }
  }
  void ExpectSame() const {
    for (size_t i = 0; i < host_.size(); ++i) EXPECT_TRUE(device_[i]->Read() == host_[i]) << i;
  }

  std::vector<CachePlane> host_planes, device_planes;

 private:
  std::vector<std::vector<std::byte>> host_;
  std::vector<std::unique_ptr<DeviceBytes>> device_;
};

struct BlocksCase {
  DType dtype;
  int32_t dim;
  int32_t gap;    // Elements between blocks.
  size_t shift;   // Bytes by which the device's planes are shifted.
  int num_planes;
};

class CacheBlocksTest : public DeviceTest, public testing::WithParamInterface<BlocksCase> {
 protected:
  CachePlane Shape(int32_t num_heads = 3) const {
    const auto& p = GetParam();
    return {.dtype = p.dtype,
            .num_blocks = 9,
            .num_heads = num_heads,
            .block_size = 8,
            .dim = p.dim,
            .block_stride = int64_t{num_heads} * 8 * p.dim + p.gap};
  }
  Cache Make(uint64_t seed, int32_t num_heads = 3) const {
    return Cache(Shape(num_heads), GetParam().num_planes, seed, GetParam().shift);
  }
  std::unique_ptr<CpuKernels> cpu_ = MakeTestKernels("portable");
};

TEST_P(CacheBlocksTest, CopiesWhatTheCpuCopies) {
  Cache cache = Make(1);
  const std::vector<BlockPair> pairs = {{0, 4}, {0, 5}, {8, 1}};
  const DeviceArray<BlockPair> device_pairs(pairs);
  ASSERT_TRUE(
      cpu_->CopyBlocks({cache.host_planes.data(), GetParam().num_planes, pairs.data(), 3}).ok());
  ASSERT_EQ(CopyBlocks({cache.device_planes.data(), GetParam().num_planes, device_pairs.data(), 3},
                       nullptr),
            cudaSuccess);
  cache.ExpectSame();
}

TEST_P(CacheBlocksTest, SwapsRunsAndHeadsAsTheCpu) {
  const std::vector<BlockRun> runs = {{0, 3, 3}, {7, 0, 2}, {5, 8, 1}};
  const DeviceArray<BlockRun> device_runs(runs);
  for (const HeadRun heads : {HeadRun{}, HeadRun{1, 2, 2}}) {
    Cache from = Make(1), to = Make(2, heads.count == 0 ? 3 : 5);
    const int planes = GetParam().num_planes;
    ASSERT_TRUE(cpu_->SwapBlocks({from.host_planes.data(), to.host_planes.data(), planes,
                                  runs.data(), 3, heads})
                    .ok());
    ASSERT_EQ(SwapBlocks({from.device_planes.data(), to.device_planes.data(), planes,
                          device_runs.data(), 3, heads},
                         nullptr),
              cudaSuccess);
    from.ExpectSame();
    to.ExpectSame();
  }
}

TEST_P(CacheBlocksTest, GathersAndScattersAsTheCpu) {
  const std::vector<int32_t> blocks = {8, 0, 3};
  const DeviceArray<int32_t> device_blocks(blocks);
  const int planes = GetParam().num_planes;
  for (const int32_t num_heads : {0, 2}) {
    Cache from = Make(1), to = Make(2);
    const int32_t first = num_heads == 0 ? 0 : 1;
    const int64_t bytes =
        3 * planes * (num_heads == 0 ? 3 : num_heads) * 8 * GetParam().dim * SizeOf(Shape().dtype);
    std::vector<std::byte> staging(bytes + 5, std::byte{0x77});
    const DeviceBytes device_staging(staging);
    auto* device = static_cast<std::byte*>(device_staging.data());
    ASSERT_TRUE(cpu_->GatherBlocks({from.host_planes.data(), planes, blocks.data(), 3, first,
                                    num_heads, staging.data(), std::ssize(staging)})
                    .ok());
    ASSERT_EQ(GatherBlocks({from.device_planes.data(), planes, device_blocks.data(), 3, first,
                            num_heads, device, std::ssize(staging)},
                           nullptr),
              cudaSuccess);
    EXPECT_TRUE(device_staging.Read() == staging);
    ASSERT_TRUE(cpu_->ScatterBlocks({to.host_planes.data(), planes, blocks.data(), 3, first,
                                     num_heads, staging.data(), std::ssize(staging)})
                    .ok());
    ASSERT_EQ(ScatterBlocks({to.device_planes.data(), planes, device_blocks.data(), 3, first,
                             num_heads, device, std::ssize(staging)},
                            nullptr),
              cudaSuccess);
    from.ExpectSame();
    to.ExpectSame();
  }
}

// Vectors of 16, 4 and 1 bytes, which planes, gaps or the size of pieces allow; several parts of a
// piece; more planes than one launch takes.
INSTANTIATE_TEST_SUITE_P(Shapes, CacheBlocksTest,
                         testing::Values(BlocksCase{DType::kBF16, 64, 0, 0, 2},
                                         BlocksCase{DType::kF32, 256, 4, 0, 1},
                                         BlocksCase{DType::kBF16, 24, 2, 0, 2},
                                         BlocksCase{DType::kFp8E4M3, 8, 1, 0, 3},
                                         BlocksCase{DType::kBF16, 64, 8, 2, 1},
                                         BlocksCase{DType::kFp8E4M3, 1, 8, 0, 2},
                                         BlocksCase{DType::kFp8E5M2, 16, 0, 0, 67}),
                         [](const auto& info) { return "case_" + std::to_string(info.index); });

using CacheBlocksLimitsTest = DeviceTest;

TEST_F(CacheBlocksLimitsTest, GathersMoreBlocksThanAGridHasRowsToAnyAddress) {
  constexpr int32_t kBlocks = 65537;
  const CachePlane plane{.dtype = DType::kFp8E4M3,
                         .num_blocks = kBlocks,
                         .num_heads = 1,
                         .block_size = 1,
                         .dim = 16,
                         .block_stride = 16};
  const Cache cache(plane, 1, 7);
  std::vector<int32_t> blocks(kBlocks);
  std::vector<std::byte> expected;
  for (int32_t i = 0; i < kBlocks; ++i) {
    blocks[i] = (i + 5) % kBlocks;
    const std::byte* block = cache.host_planes[0].data + int64_t{16} * blocks[i];
    expected.insert(expected.end(), block, block + 16);
  }
  const DeviceArray<int32_t> device_blocks(blocks);
  // Where no vector of 16 bytes can be written.
  const DeviceBytes staging(std::vector<std::byte>(expected.size()), 4);
  ASSERT_EQ(GatherBlocks({cache.device_planes.data(), 1, device_blocks.data(), kBlocks, 0, 0,
                          static_cast<std::byte*>(staging.data()), std::ssize(expected)},
                         nullptr),
            cudaSuccess);
  EXPECT_TRUE(staging.Read() == expected);
}

// Out to pinned memory and back, beside other work, is what preemption does.
TEST_F(CacheBlocksLimitsTest, SwapsWithPinnedMemory) {
  CachePlane plane{.num_blocks = 2, .num_heads = 2, .block_size = 8, .dim = 8, .block_stride = 128};
  Cache cache(plane, 1, 5);
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 1024, cudaHostAllocDefault), cudaSuccess);
  CachePlane host = plane;
  host.data = static_cast<std::byte*>(pinned);
  const DeviceArray<BlockRun> run({{0, 1, 1}});
  ASSERT_EQ(SwapBlocks({cache.device_planes.data(), &host, 1, run.data(), 1, {}}, nullptr),
            cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << emulation::LastMessage();
  EXPECT_EQ(std::memcmp(host.data + 512, cache.host_planes[0].data, 512), 0);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

}  // namespace
}  // namespace baton::cuda
