#pragma once

#include <cstdint>

#include "kernels/cuda/dialect.h"

namespace baton::cuda {

// What one mma.sync m16n8k16 multiplies and adds: values of bf16 or f16 by their bits, and floats.
struct MmaTile {
  uint16_t a[16][16];
  uint16_t b[16][8];
  float c[16][8];
};

// tiles[i].c += tiles[i].a * tiles[i].b, by one instruction each, in device memory.
cudaError_t MultiplyTiles(bool is_bf16, MmaTile* tiles, int count, cudaStream_t stream);

}  // namespace baton::cuda
