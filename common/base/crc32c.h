#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace baton {

// CRC-32C (Castagnoli, RFC 3720 appendix B.4): reflected polynomial 0x82F63B78, initial value and
// final exclusive-or all ones. Extend continues: ExtendCrc32c(Crc32c(a), b) == Crc32c(ab).
uint32_t ExtendCrc32c(uint32_t crc, std::span<const std::byte> data);

inline uint32_t Crc32c(std::span<const std::byte> data) { return ExtendCrc32c(0, data); }

// The two implementations behind ExtendCrc32c, for the test that compares them. The first may be
// called only when HasCrc32cInstruction().
bool HasCrc32cInstruction();
uint32_t ExtendCrc32cInstruction(uint32_t crc, std::span<const std::byte> data);
uint32_t ExtendCrc32cTable(uint32_t crc, std::span<const std::byte> data);

}  // namespace baton
