#pragma once

// The tile registers of AMX (Intel, Architecture Instruction Set Extensions Programming Reference).
// Included only by what is compiled with AMX; internal linkage, as in vec.h. The process must have
// leave to use tiles (select_kernel_set.cc).

#include <cstdint>

// Asm, as GCC 12's intrinsics do not say that they read memory. Strides in bytes, from row to row.
#define BATON_TILE_ZERO(tile) asm volatile("tilezero %%tmm" #tile ::)
#define BATON_TILE_LOAD(tile, from, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"(int64_t{stride}) : "memory")
// Leaves what lies in the first cache there: for what passes by once.
#define BATON_TILE_STREAM(tile, from, stride) \
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm" #tile ::"r"(from), "r"(int64_t{stride}) : "memory")
#define BATON_TILE_STORE(tile, to, stride) \
  asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"(int64_t{stride}) : "memory")
// sum[row][column] += a[row] . w[column], of 16 pairs of bf16.
#define BATON_TILE_PRODUCT(sum, a, w) \
  asm volatile("tdpbf16ps %%tmm" #w ", %%tmm" #a ", %%tmm" #sum ::)

namespace baton {
namespace {

inline constexpr int kNumTiles = 8;

// Gives the registers their heights, of rows of 64 bytes, until destroyed.
class TileSession {
 public:
  explicit TileSession(const uint8_t (&heights)[kNumTiles]) {
    Config config;
    for (int tile = 0; tile < kNumTiles; ++tile) {
      config.rows[tile] = heights[tile];
      config.row_bytes[tile] = heights[tile] > 0 ? 64 : 0;
    }
    asm volatile("ldtilecfg %0" ::"m"(config));
  }
  ~TileSession() { asm volatile("tilerelease" ::); }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

 private:
  struct alignas(64) Config {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
  static_assert(sizeof(Config) == 64);
};

}  // namespace
}  // namespace baton
