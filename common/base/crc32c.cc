#include "common/base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
#endif

namespace baton {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;

// table[k][b]: the CRC register after byte b and k zero bytes ("slicing by 8").
constexpr std::array<std::array<uint32_t, 256>, 8> MakeTables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (int k = 1; k < 8; ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t previous = tables[k - 1][b];
      tables[k][b] = (previous >> 8) ^ tables[0][previous & 0xFF];
    }
  }
  return tables;
}

constexpr auto kTables = MakeTables();

uint32_t LoadLittle32(const std::byte* p) {
  return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 |
         static_cast<uint32_t>(p[2]) << 16 | static_cast<uint32_t>(p[3]) << 24;
}

}  // namespace

uint32_t ExtendCrc32cTable(uint32_t crc, std::span<const std::byte> data) {
  crc = ~crc;
  const std::byte* p = data.data();
  size_t n = data.size();
  for (; n >= 8; n -= 8, p += 8) {
    const uint32_t lo = LoadLittle32(p) ^ crc;
    const uint32_t hi = LoadLittle32(p + 4);
    crc = kTables[7][lo & 0xFF] ^ kTables[6][(lo >> 8) & 0xFF] ^ kTables[5][(lo >> 16) & 0xFF] ^
          kTables[4][lo >> 24] ^ kTables[3][hi & 0xFF] ^ kTables[2][(hi >> 8) & 0xFF] ^
          kTables[1][(hi >> 16) & 0xFF] ^ kTables[0][hi >> 24];
  }
  for (; n > 0; --n, ++p) crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(*p)) & 0xFF];
  return ~crc;
}

#if defined(__x86_64__)

#define BATON_CRC32C_TARGET __attribute__((target("sse4.2,pclmul")))

namespace {

// x to this power modulo the polynomial, reflected.
constexpr uint32_t PowerOfX(size_t power) {
  uint32_t value = uint32_t{1} << 31;
  for (; power > 0; --power) value = (value >> 1) ^ ((value & 1) ? kPolynomial : 0);
  return value;
}

// The state as it is behind kBytes zero bytes more. The product of two reflected values is one bit
// short, and the instruction multiplies by x^32.
template <size_t kBytes>
BATON_CRC32C_TARGET inline uint64_t BehindZeros(uint64_t state) {
  constexpr uint32_t kFactor = PowerOfX(8 * kBytes - 33);
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<int64_t>(state)),
                                               _mm_cvtsi64_si128(kFactor), 0);
  return _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product)));
}

BATON_CRC32C_TARGET inline uint64_t WithWord(uint64_t state, const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, 8);
  return _mm_crc32_u64(state, word);
}

// Three parts of kBytes at once: the instruction takes three cycles, and one can begin in each.
template <size_t kBytes>
BATON_CRC32C_TARGET uint64_t ExtendByThree(uint64_t state, const std::byte** at, size_t* left) {
  for (; *left >= 3 * kBytes; *left -= 3 * kBytes, *at += 3 * kBytes) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kBytes; i += 8) {
      state = WithWord(state, *at + i);
      second = WithWord(second, *at + kBytes + i);
      third = WithWord(third, *at + 2 * kBytes + i);
    }
    state = BehindZeros<2 * kBytes>(state) ^ BehindZeros<kBytes>(second) ^ third;
  }
  return state;
}

}  // namespace

bool HasCrc32cInstruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  return has;
}

BATON_CRC32C_TARGET uint32_t ExtendCrc32cInstruction(uint32_t crc,
                                                     std::span<const std::byte> data) {
  const std::byte* p = data.data();
  size_t n = data.size();
  uint64_t state = ExtendByThree<1024>(static_cast<uint32_t>(~crc), &p, &n);
  state = ExtendByThree<64>(state, &p, &n);
  for (; n >= 8; n -= 8, p += 8) state = WithWord(state, p);
  uint32_t tail = static_cast<uint32_t>(state);
  for (; n > 0; --n, ++p) tail = _mm_crc32_u8(tail, static_cast<uint8_t>(*p));
  return ~tail;
}

#else

bool HasCrc32cInstruction() { return false; }

uint32_t ExtendCrc32cInstruction(uint32_t crc, std::span<const std::byte> data) {
  return ExtendCrc32cTable(crc, data);
}

#endif

uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> data) {
  return HasCrc32cInstruction() ? ExtendCrc32cInstruction(crc, data) : ExtendCrc32cTable(crc, data);
}

}  // namespace baton
