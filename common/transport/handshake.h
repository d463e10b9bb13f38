#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/transport/kv_transport.h"
#include "common/transport/rank_legs.h"
#include "common/transport/transfer_plan.h"

// The bodies of kHello, kChallenge and kProof. Both sides prove that they know the pair key by an
// HMAC-SHA256 over their own label and the whole transcript: both incarnations, the ranks on both
// sides, both fresh nonces and both pool shapes. The labels differ, so a proof cannot be reflected.
namespace baton {

using Nonce = std::array<uint8_t, 32>;
using Mac = std::array<uint8_t, 32>;

inline constexpr uint32_t kHelloBytes = 16 + 4 + 32 + 12;
inline constexpr uint32_t kChallengeBytes = 32 + 12 + 32;
inline constexpr uint32_t kProofBytes = 32;

// What a peer tells about its pool; enough to plan frames for it.
struct PoolShape {
  int32_t block_size = 0;
  HeadRange heads;
};

struct Hello {
  Incarnation sender = 0;
  Incarnation receiver = 0;
  RankPlace sender_place;
  RankPlace receiver_place;
  Nonce nonce{};
  PoolShape pool;
};

struct Challenge {
  Nonce nonce{};
  PoolShape pool;
  Mac proof{};  // ReceiverProof.
};

std::array<std::byte, kHelloBytes> EncodeHello(const Hello& hello);
std::array<std::byte, kChallengeBytes> EncodeChallenge(const Challenge& challenge);

// INVALID_ARGUMENT for a wrong size, an incarnation of 0, or a rank or pool that cannot be.
absl::StatusOr<Hello> DecodeHello(std::span<const std::byte> bytes);
absl::StatusOr<Challenge> DecodeChallenge(std::span<const std::byte> bytes);
absl::StatusOr<Mac> DecodeProof(std::span<const std::byte> bytes);

// The proofs ignore challenge.proof.
Mac ReceiverProof(const PairKey& key, const Hello& hello, const Challenge& challenge);
Mac SenderProof(const PairKey& key, const Hello& hello, const Challenge& challenge);

// In constant time.
bool SameMac(const Mac& a, const Mac& b);

// From the operating system's randomness; INTERNAL when it cannot be had.
absl::StatusOr<Nonce> NewNonce();

}  // namespace baton
