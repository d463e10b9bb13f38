// What product_cases.h asks of the GPU.
#include "tests/kernels/cuda/device_ops.h"
#include "tests/kernels/product_cases.h"

namespace baton {
namespace {

// On a GPU of that kind; any later test has the usual one.
class ProductsOn : public cuda::DeviceOps {
 public:
  explicit ProductsOn(const ProductCase& which) : DeviceOps(which.activations, which.out) {
    emulation::SetSeed(which.seed);
    emulation::SetGpu(which.ops);
  }
  ~ProductsOn() override {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess) << emulation::LastMessage();
    emulation::SetGpu("sm90");
  }
};

}  // namespace

// sm90 has two forms, other GPUs have one for all.
std::vector<ProductCase> ProductCases() {
  constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;
  return {{"sm90", kBF16, kBF16, kF32, 1}, {"sm90", kBF16, kBF16, kBF16, 2},
          {"sm90", kF16, kF16, kF32, 3},   {"sm90", kF16, kF16, kF16, 4},
          {"sm80", kBF16, kBF16, kF32, 5}, {"sm80", kF16, kF16, kF16, 6}};
}

std::unique_ptr<CpuKernels> MakeProductOps(const ProductCase& which) {
  emulation::ResetDevice();
  return std::make_unique<ProductsOn>(which);
}

ProductSizes SizesOfProducts() {
  // Around tiles of 16, 64 and 128, of any k, also less than a chunk of 8; more tiles of k than
  // there are stages, for each shape of tile.
  return {.any = {{1, 1, 1},
                  {1, 64, 64},
                  {3, 65, 40},
                  {16, 130, 129},
                  {17, 63, 200},
                  {64, 10, 72},
                  {65, 129, 64},
                  {130, 127, 136},
                  {7, 200, 136},
                  {129, 5, 7},
                  {5, 20, 584},
                  {40, 33, 456},
                  {130, 20, 392},
                  {67, 1, 16}},
          .long_k = 456,
          // Segments that end amid a tile of k, with it, and beyond all stages.
          .segmented = {{1, 70, 64, 2},
                        {3, 20, 8 * 96, 8},
                        {16, 65, 256, 8},
                        {17, 20, 4 * 96, 4},
                        {40, 12, 2 * 320, 2},
                        {64, 20, 512, 8},
                        {65, 20, 8 * 32, 8},
                        {130, 9, 4 * 160, 4}},
          .divided = {{2, 70, 8 * 96, 8}, {33, 20, 256, 8}, {66, 20, 4 * 96, 4}}};
}

}  // namespace baton
