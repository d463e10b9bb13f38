#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "common/base/crc32c.h"

// A message between router and worker ends with the CRC-32C of itself without that field: TCP's
// own checksum misses one damaged segment in some ten thousand, and HTTP/2 has none. Fields that a
// later version adds keep their place when they are serialised unread, as their numbers are higher.
//
// `place` is what both sides know of where the message belongs. Event n of a call has the place
// request.crc32c + n: one that a damaged frame header led to another call does not fit there.
namespace baton {

inline constexpr uint32_t kNoPlace = 1;  // Not 0: an empty message would need no seal.

inline uint32_t ChecksumOf(const std::string& bytes, uint32_t place) {
  return ExtendCrc32c(place, std::as_bytes(std::span(bytes)));
}

template <typename Message>
uint32_t ChecksumOf(Message message, uint32_t place) {
  message.clear_crc32c();
  return ChecksumOf(message.SerializeAsString(), place);
}

// The last change before the message is sent.
template <typename Message>
void Seal(Message* message, uint32_t place = kNoPlace) {
  message->set_crc32c(ChecksumOf(*message, place));
}

// DATA_LOSS if the message is not as it was sealed, or not for this place.
template <typename Message>
absl::Status CheckSeal(const Message& message, uint32_t place = kNoPlace) {
  if (message.crc32c() == ChecksumOf(message, place)) return absl::OkStatus();
  return absl::DataLossError("crc32c does not match: the message was damaged on its way");
}

}  // namespace baton
