#include "tests/gpu/mma_tiles.h"

#include "kernels/cuda/floats.h"

namespace baton::cuda {
namespace mma_tiles {

BATON_DEVICE uint32_t Pair(uint16_t low, uint16_t high) {
  return static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
}

// A warp for each tile. Lane 4 g + t holds row g and g + 8 of a and c, column g of b.
template <typename T>
__global__ void __launch_bounds__(32) MultiplyTilesKernel(MmaTile* tiles) {
  MmaTile& tile = tiles[blockIdx.x];
  const int g = threadIdx.x / 4, k = threadIdx.x % 4 * 2;
  const uint32_t a[4] = {Pair(tile.a[g][k], tile.a[g][k + 1]),
                         Pair(tile.a[g + 8][k], tile.a[g + 8][k + 1]),
                         Pair(tile.a[g][k + 8], tile.a[g][k + 9]),
                         Pair(tile.a[g + 8][k + 8], tile.a[g + 8][k + 9])};
  float c[4] = {tile.c[g][k], tile.c[g][k + 1], tile.c[g + 8][k], tile.c[g + 8][k + 1]};
  MultiplyAdd<T>(c, a, Pair(tile.b[k][g], tile.b[k + 1][g]),
                 Pair(tile.b[k + 8][g], tile.b[k + 9][g]));
  tile.c[g][k] = c[0];
  tile.c[g][k + 1] = c[1];
  tile.c[g + 8][k] = c[2];
  tile.c[g + 8][k + 1] = c[3];
}

}  // namespace mma_tiles

cudaError_t MultiplyTiles(bool is_bf16, MmaTile* tiles, int count, cudaStream_t stream) {
  return Launch(
      is_bf16 ? mma_tiles::MultiplyTilesKernel<Bf16> : mma_tiles::MultiplyTilesKernel<F16>,
      dim3(count), dim3(32), 0, stream, tiles);
}

}  // namespace baton::cuda
