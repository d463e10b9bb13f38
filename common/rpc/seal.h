#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "common/base/crc32c.h"

// A message between router and worker ends with the CRC-32C of itself without that field: TCP's
// own checksum misses one damaged segment in some ten thousand, and HTTP/2 has none. Fields that a
// later version adds keep their place when they are serialised unread, as their numbers are higher.
namespace baton {

template <typename Message>
uint32_t ChecksumOf(Message message) {
  message.clear_crc32c();
  const std::string bytes = message.SerializeAsString();
  return Crc32c(std::as_bytes(std::span(bytes)));
}

// The last change before the message is sent.
template <typename Message>
void Seal(Message* message) {
  message->set_crc32c(ChecksumOf(*message));
}

// DATA_LOSS if the message is not as it was sealed.
template <typename Message>
absl::Status CheckSeal(const Message& message) {
  if (message.crc32c() == ChecksumOf(message)) return absl::OkStatus();
  return absl::DataLossError("crc32c does not match: the message was damaged on its way");
}

}  // namespace baton
