#include "common/transport/pair_key.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>
#include <span>
#include <string_view>

#include "common/base/check.h"
#include "common/transport/little_endian.h"

namespace baton {

absl::StatusOr<TransportSecret> NewSecret() {
  TransportSecret secret;
  if (RAND_bytes(secret.data(), static_cast<int>(secret.size())) != 1) {
    return absl::InternalError("the system's random source gave no bytes for the transport secret");
  }
  return secret;
}

PairKey DerivePairKey(const TransportSecret& secret, Incarnation sender, Incarnation receiver) {
  constexpr std::string_view kLabel = "baton pair key v1";
  std::array<std::byte, kLabel.size() + 16> message;
  std::memcpy(message.data(), kLabel.data(), kLabel.size());
  const std::span<std::byte> ids = std::span(message).subspan(kLabel.size());
  LittleEndianWriter writer(ids);
  writer.Put(sender);
  writer.Put(receiver);
  PairKey key;
  unsigned int size = 0;
  const uint8_t* mac = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                            reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                            key.data(), &size);
  BATON_CHECK(mac != nullptr && size == key.size());
  return key;
}

}  // namespace baton
