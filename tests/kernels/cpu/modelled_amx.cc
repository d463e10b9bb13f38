// The product in tiles of AMX on a model of the tile registers, so that its order, its blocks and
// its segments are tested where no CPU has them. Of newer instructions only what x86-64-v4 has.

#include <cstring>

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/lane_convert.h"
#include "tests/kernels/product_order.h"

namespace baton {
namespace {

struct ModelledTiles {
  uint8_t rows[kNumTiles];
  uint32_t at[kNumTiles][16][16];
};
thread_local ModelledTiles tiles;

class ModelledTileSession {
 public:
  explicit ModelledTileSession(const uint8_t (&heights)[kNumTiles]) {
    std::memset(&tiles, 0xff, sizeof(tiles));
    std::memcpy(tiles.rows, heights, sizeof(heights));
  }
  ~ModelledTileSession() { std::memset(tiles.rows, 0, sizeof(tiles.rows)); }
};

void ZeroTile(int tile) { std::memset(tiles.at[tile], 0, sizeof(tiles.at[tile])); }

void LoadTile(int tile, const void* from, int64_t stride) {
  for (int r = 0; r < tiles.rows[tile]; ++r) {
    std::memcpy(tiles.at[tile][r], static_cast<const char*>(from) + r * stride, 64);
  }
}

void StoreTile(int tile, void* to, int64_t stride) {
  for (int r = 0; r < tiles.rows[tile]; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, tiles.at[tile][r], 64);
  }
}

// TDPBF16PS.
void MultiplyTiles(int sum, int a, int w) {
  for (int r = 0; r < tiles.rows[sum]; ++r) {
    for (int c = 0; c < 16; ++c) {
      float halves[2] = {};
      for (int k = 0; k < 16; ++k) {
        const uint32_t x = tiles.at[a][r][k], y = tiles.at[w][k][c];
        halves[0] = FlushingFma(BitsFloat(x << 16), BitsFloat(y << 16), halves[0]);
        halves[1] = FlushingFma(BitsFloat(x & 0xffff0000u), BitsFloat(y & 0xffff0000u), halves[1]);
      }
      const float all = FlushingAdd(BitsFloat(tiles.at[sum][r][c]),
                                    FlushingAdd(halves[0], halves[1]));
      std::memcpy(&tiles.at[sum][r][c], &all, sizeof(all));
    }
  }
}

}  // namespace
}  // namespace baton

#undef BATON_TILE_ZERO
#undef BATON_TILE_LOAD
#undef BATON_TILE_STREAM
#undef BATON_TILE_STORE
#undef BATON_TILE_PRODUCT
#define BATON_TILE_ZERO(tile) ZeroTile(tile)
#define BATON_TILE_LOAD(tile, from, stride) LoadTile(tile, from, stride)
#define BATON_TILE_STREAM(tile, from, stride) LoadTile(tile, from, stride)
#define BATON_TILE_STORE(tile, to, stride) StoreTile(tile, to, stride)
#define BATON_TILE_PRODUCT(sum, a, w) MultiplyTiles(sum, a, w)
#define TileSession ModelledTileSession

#include "kernels/cpu/amx_gemm.cc"
