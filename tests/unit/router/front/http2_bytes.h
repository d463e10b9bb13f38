#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "router/front/http2_frames.h"

// Frames as tests write them (RFC 9113, 6).
namespace baton {

inline constexpr uint8_t kDataFrame = 0;
inline constexpr uint8_t kHeadersFrame = 1;
inline constexpr uint8_t kRstStreamFrame = 3;
inline constexpr uint8_t kSettingsFrame = 4;
inline constexpr uint8_t kContinuationFrame = 9;
inline constexpr uint8_t kEndStreamFlag = 1;
inline constexpr uint8_t kPaddedFlag = 8;

inline std::string FrameHead(size_t size, uint8_t type, uint8_t flags, uint32_t stream) {
  std::string head;
  for (const int shift : {16, 8, 0}) head.push_back(static_cast<char>(size >> shift & 0xff));
  head.push_back(static_cast<char>(type));
  head.push_back(static_cast<char>(flags));
  for (const int shift : {24, 16, 8, 0}) head.push_back(static_cast<char>(stream >> shift & 0xff));
  return head;
}

inline std::string Frame(uint8_t type, uint8_t flags, uint32_t stream,
                         std::string_view payload = "") {
  return FrameHead(payload.size(), type, flags, stream).append(payload);
}

inline std::string Reset(uint32_t stream, char error = 8) {
  return Frame(kRstStreamFrame, 0, stream, std::string("\0\0\0", 3) + error);
}

// What a client says first.
inline std::string ClientsBegin() {
  return std::string(kHttp2Preface) + Frame(kSettingsFrame, 0, 0);
}

// Streams 1, 3, ... that are opened and reset at once.
inline std::string OpenedAndReset(int count, uint32_t first = 1) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    const uint32_t stream = first + 2 * static_cast<uint32_t>(i);
    bytes += Frame(kHeadersFrame, 4, stream, "head") + Reset(stream);
  }
  return bytes;
}

inline std::string Opened(int count, uint32_t first = 1) {
  std::string bytes;
  for (int i = 0; i < count; ++i) {
    bytes += Frame(kHeadersFrame, 4, first + 2 * static_cast<uint32_t>(i), "head");
  }
  return bytes;
}

// What a connection is told whose limit is that of StreamLimitsOptions.
inline constexpr char kTooManyOpen[] = "more than 200 streams open at once";

}  // namespace baton
