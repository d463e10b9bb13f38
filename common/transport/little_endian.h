#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace baton {

// Writes integers, little endian, into a buffer the caller has sized; writing past its end is our
// own bug and is dropped.
class LittleEndianWriter {
 public:
  explicit LittleEndianWriter(std::span<std::byte> out) : out_(out) {}

  template <std::unsigned_integral T>
  void Put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) {
      PutByte(static_cast<std::byte>((value >> (8 * i)) & 0xFF));
    }
  }
  void PutFloat(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    Put(bits);
  }
  void PutI32(int32_t value) { Put(static_cast<uint32_t>(value)); }
  void PutBytes(std::span<const uint8_t> bytes) {
    for (uint8_t b : bytes) PutByte(static_cast<std::byte>(b));
  }
  size_t size() const { return at_; }

 private:
  void PutByte(std::byte b) {
    if (at_ < out_.size()) out_[at_++] = b;
  }
  std::span<std::byte> out_;
  size_t at_ = 0;
};

// Reads what the writer wrote. Reading past the end yields zeros and ok() == false, so a decoder
// checks once at its end.
class LittleEndianReader {
 public:
  explicit LittleEndianReader(std::span<const std::byte> in) : in_(in) {}

  template <std::unsigned_integral T>
  T Get() {
    if (in_.size() < sizeof(T)) {
      ok_ = false;
      in_ = {};
      return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<uint64_t>(in_[i]) << (8 * i);
    in_ = in_.subspan(sizeof(T));
    return static_cast<T>(value);
  }
  int32_t GetI32() { return static_cast<int32_t>(Get<uint32_t>()); }
  float GetFloat() {
    const uint32_t bits = Get<uint32_t>();
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  void GetBytes(std::span<uint8_t> out) {
    for (uint8_t& b : out) b = Get<uint8_t>();
  }
  bool ok() const { return ok_; }
  size_t remaining() const { return in_.size(); }

 private:
  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace baton
