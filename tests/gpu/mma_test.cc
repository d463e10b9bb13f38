// The instruction that products and attention are made of, against the function that the emulation
// has for it: on a device this says whether the emulation's bits are the device's.

#include "kernels/emulation/tensor_core.h"

#include <bit>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "tests/gpu/mma_tiles.h"
#include "tests/kernels/cuda/device_fixture.h"

namespace baton::cuda {
namespace {

enum class Kind { kOrdinary, kWideExponents, kCancelling, kAnyBits };

struct MmaCase {
  bool is_bf16;
  Kind kind;
  const char* name;
};

class MmaTest : public DeviceTest, public testing::WithParamInterface<MmaCase> {
 protected:
  static constexpr int kTiles = 256;

  int exponent_bits() const { return GetParam().is_bf16 ? 8 : 5; }
  int mantissa_bits() const { return 15 - exponent_bits(); }

  // Bits of a half type whose exponent lies within `spread` of the middle one.
  uint16_t Half(int spread) {
    if (GetParam().kind == Kind::kAnyBits) return static_cast<uint16_t>(random_.Below(1 << 16));
    const int bias = (1 << (exponent_bits() - 1)) - 1;
    const int exponent = bias - spread + static_cast<int>(random_.Below(2 * spread + 1));
    const uint64_t mantissa = random_.Below(uint64_t{1} << mantissa_bits());
    return static_cast<uint16_t>(random_.Below(2) << 15 |
                                 static_cast<uint64_t>(exponent) << mantissa_bits() | mantissa);
  }
  float Sum(int spread) {
    if (GetParam().kind == Kind::kAnyBits) {
      return std::bit_cast<float>(static_cast<uint32_t>(random_.Below(uint64_t{1} << 32)));
    }
    const int exponent = 127 - spread + static_cast<int>(random_.Below(2 * spread + 1));
    return std::bit_cast<float>(static_cast<uint32_t>(random_.Below(2) << 31 |
                                                      static_cast<uint64_t>(exponent) << 23 |
                                                      random_.Below(1 << 23)));
  }
  MmaTile Make() {
    const int spread = GetParam().kind == Kind::kWideExponents ? 13 : 3;
    MmaTile tile;
    for (auto& row : tile.a) {
      for (uint16_t& x : row) x = Half(spread);
    }
    for (auto& row : tile.b) {
      for (uint16_t& x : row) x = Half(spread);
    }
    for (auto& row : tile.c) {
      for (float& x : row) x = Sum(2 * spread);
    }
    if (GetParam().kind != Kind::kCancelling) return tile;
    // All but the last pair of neighbours add up to zero.
    for (auto& row : tile.a) {
      for (int k = 0; k < 14; k += 2) row[k + 1] = row[k] ^ 0x8000;
    }
    for (int k = 0; k < 14; k += 2) std::memcpy(tile.b[k + 1], tile.b[k], sizeof(tile.b[k]));
    return tile;
  }
  float Value(uint16_t bits) const {
    return GetParam().is_bf16 ? ToFloat(Bf16{bits}) : ToFloat(F16{bits});
  }
  emulation::TileProduct Expected(emulation::Architecture architecture, const MmaTile& tile) const {
    emulation::TileProduct product;
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < 16; ++k) product.a[i][k] = Value(tile.a[i][k]);
      for (int j = 0; j < 8; ++j) product.b[i][j] = Value(tile.b[i][j]);
    }
    std::memcpy(product.c, tile.c, sizeof(tile.c));
    MultiplyTile(architecture, GetParam().is_bf16 ? -126 : -14, product);
    return product;
  }
  static std::string Hex(float x) {
    char text[16];
    std::snprintf(text, sizeof(text), "%08x", std::bit_cast<uint32_t>(x));
    return text;
  }

  Random random_{7};
};

TEST_P(MmaTest, HasTheBitsOfTheEmulation) {
  for (const auto architecture : Architectures()) {
    emulation::SetArchitecture(architecture);
    std::vector<MmaTile> tiles(kTiles);
    for (MmaTile& tile : tiles) tile = Make();
    const DeviceArray<MmaTile> there(tiles);
    ASSERT_EQ(MultiplyTiles(GetParam().is_bf16, there.data(), kTiles, nullptr), cudaSuccess);
    const std::vector<MmaTile> got = there.Read();
    int differing = 0;
    for (int n = 0; n < kTiles; ++n) {
      const emulation::TileProduct expected = Expected(architecture, tiles[n]);
      for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 8; ++j) {
          const float e = expected.c[i][j], g = got[n].c[i][j];
          if (std::memcmp(&e, &g, sizeof(e)) == 0 || ++differing > 4) continue;
          ADD_FAILURE() << "tile " << n << " row " << i << " column " << j << " of "
                        << Hex(tiles[n].c[i][j]) << ": " << Hex(g) << ", emulated " << Hex(e);
        }
      }
    }
    EXPECT_EQ(differing, 0) << "of " << kTiles * 128;
  }
  emulation::SetArchitecture(emulation::Architecture::kHopper);
}

INSTANTIATE_TEST_SUITE_P(
    Inputs, MmaTest,
    testing::Values(MmaCase{true, Kind::kOrdinary, "bf16_ordinary"},
                    MmaCase{true, Kind::kWideExponents, "bf16_wide_exponents"},
                    MmaCase{true, Kind::kCancelling, "bf16_cancelling"},
                    MmaCase{true, Kind::kAnyBits, "bf16_any_bits"},
                    MmaCase{false, Kind::kOrdinary, "f16_ordinary"},
                    MmaCase{false, Kind::kWideExponents, "f16_wide_exponents"},
                    MmaCase{false, Kind::kCancelling, "f16_cancelling"},
                    MmaCase{false, Kind::kAnyBits, "f16_any_bits"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace baton::cuda
