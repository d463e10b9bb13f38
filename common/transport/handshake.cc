#include "common/transport/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/transport/little_endian.h"

namespace baton {
namespace {

void PutPool(const PoolShape& pool, LittleEndianWriter* out) {
  out->PutI32(pool.block_size);
  out->PutI32(pool.heads.first);
  out->PutI32(pool.heads.count);
}

PoolShape GetPool(LittleEndianReader* in) {
  PoolShape pool;
  pool.block_size = in->GetI32();
  pool.heads.first = in->GetI32();
  pool.heads.count = in->GetI32();
  return pool;
}

bool IsPool(const PoolShape& pool) {
  return pool.block_size > 0 && pool.block_size <= (1 << 20) && pool.heads.first >= 0 &&
         pool.heads.first <= (1 << 20) && pool.heads.count > 0 && pool.heads.count <= (1 << 20);
}

void PutPlace(RankPlace place, LittleEndianWriter* out) {
  out->Put(static_cast<uint8_t>(place.rank));
  out->Put(static_cast<uint8_t>(place.size));
}

RankPlace GetPlace(LittleEndianReader* in) {
  RankPlace place;
  place.rank = in->Get<uint8_t>();
  place.size = in->Get<uint8_t>();
  return place;
}

bool IsPlace(RankPlace place) { return place.size <= kMaxRanks && place.rank < place.size; }

Mac Prove(std::string_view label, const PairKey& key, const Hello& hello, Challenge challenge) {
  challenge.proof = {};
  const auto hello_bytes = EncodeHello(hello);
  const auto challenge_bytes = EncodeChallenge(challenge);
  std::vector<std::byte> message;
  message.reserve(label.size() + hello_bytes.size() + challenge_bytes.size());
  for (char c : label) message.push_back(static_cast<std::byte>(c));
  message.insert(message.end(), hello_bytes.begin(), hello_bytes.end());
  message.insert(message.end(), challenge_bytes.begin(), challenge_bytes.end());
  Mac mac;
  unsigned int size = 0;
  const uint8_t* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                             reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                             mac.data(), &size);
  BATON_CHECK(done != nullptr && size == mac.size());
  return mac;
}

}  // namespace

std::array<std::byte, kHelloBytes> EncodeHello(const Hello& hello) {
  std::array<std::byte, kHelloBytes> bytes{};
  LittleEndianWriter out(bytes);
  out.Put(hello.sender);
  out.Put(hello.receiver);
  PutPlace(hello.sender_place, &out);
  PutPlace(hello.receiver_place, &out);
  out.PutBytes(hello.nonce);
  PutPool(hello.pool, &out);
  return bytes;
}

std::array<std::byte, kChallengeBytes> EncodeChallenge(const Challenge& challenge) {
  std::array<std::byte, kChallengeBytes> bytes{};
  LittleEndianWriter out(bytes);
  out.PutBytes(challenge.nonce);
  PutPool(challenge.pool, &out);
  out.PutBytes(challenge.proof);
  return bytes;
}

absl::StatusOr<Hello> DecodeHello(std::span<const std::byte> bytes) {
  LittleEndianReader in(bytes);
  Hello hello;
  hello.sender = in.Get<uint64_t>();
  hello.receiver = in.Get<uint64_t>();
  hello.sender_place = GetPlace(&in);
  hello.receiver_place = GetPlace(&in);
  in.GetBytes(hello.nonce);
  hello.pool = GetPool(&in);
  if (!in.ok() || in.remaining() != 0) return absl::InvalidArgumentError("hello of a wrong size");
  if (hello.sender == 0 || hello.receiver == 0 || !IsPlace(hello.sender_place) ||
      !IsPlace(hello.receiver_place) || !IsPool(hello.pool)) {
    return absl::InvalidArgumentError(
        "hello without incarnations or with an impossible rank or pool");
  }
  return hello;
}

absl::StatusOr<Challenge> DecodeChallenge(std::span<const std::byte> bytes) {
  LittleEndianReader in(bytes);
  Challenge challenge;
  in.GetBytes(challenge.nonce);
  challenge.pool = GetPool(&in);
  in.GetBytes(challenge.proof);
  if (!in.ok() || in.remaining() != 0) {
    return absl::InvalidArgumentError("challenge of a wrong size");
  }
  if (!IsPool(challenge.pool)) {
    return absl::InvalidArgumentError("challenge with an impossible pool");
  }
  return challenge;
}

absl::StatusOr<Mac> DecodeProof(std::span<const std::byte> bytes) {
  if (bytes.size() != kProofBytes) return absl::InvalidArgumentError("proof of a wrong size");
  Mac mac;
  LittleEndianReader(bytes).GetBytes(mac);
  return mac;
}

Mac ReceiverProof(const PairKey& key, const Hello& hello, const Challenge& challenge) {
  return Prove("baton kv receiver v2", key, hello, challenge);
}

Mac SenderProof(const PairKey& key, const Hello& hello, const Challenge& challenge) {
  return Prove("baton kv sender v2", key, hello, challenge);
}

bool SameMac(const Mac& a, const Mac& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::StatusOr<Nonce> NewNonce() {
  Nonce nonce;
  if (RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) != 1) {
    return absl::InternalError("the system's random source gave no bytes for a nonce");
  }
  return nonce;
}

}  // namespace baton
