#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/sampling.h"
#include "common/transport/kv_transport.h"
#include "common/transport/transfer_plan.h"

// The bytes of a data connection. Each direction is a sequence of frames: a header of 80 bytes and,
// if payload_bytes > 0, the payload and a trailer of 8 bytes. All integers are little endian:
//    0 u32 magic | 4 u16 version | 6 u8 type | 7 u8 plane | 8 u64 sequence | 16 u64 ticket.hi
//   24 u64 ticket.lo | 32 i32 layer | 36 i32 first_token | 40 i32 num_tokens | 44 i32 first_head
//   48 i32 num_heads | 52 u32 payload_bytes | 56 u32 code | 60 u32 zero | 64 u64 value
//   72 u32 zero | 76 u32 CRC32C of bytes 0..75
// Trailer: u32 CRC32C of the payload | u32 flags. The checksum comes after the payload so that a
// sender that is told to stop in the middle can end the frame without reading the blocks again: it
// fills with zeros and sets kTrailerAbandoned. Everything here is a pure function; any bytes give
// a value or a Status.
namespace baton {

inline constexpr size_t kHeaderBytes = 80;
inline constexpr size_t kTrailerBytes = 8;
inline constexpr uint32_t kMaxDataPayloadBytes = 1 << 20;
inline constexpr uint32_t kMaxWordBytes = 32 << 10;  // Of kCarried.
inline constexpr int32_t kMaxTopLogprobs = 1024;

enum class FrameType : uint8_t {
  kHello = 1,  // Sender: who I am, whom I mean, a nonce. handshake.h has the bodies.
  kChallenge,  // Receiver: its nonce and its proof of the pair key.
  kProof,      // Sender: its proof.
  kAccepted,   // Receiver: frames may come.
  kData,       // Sender: ticket, plane and range; the payload is [head][token][dim].
  kFinal,      // Sender: digests and the first token (FinalBody).
  kAck,        // Receiver: `value` payload bytes of the ticket were accepted so far. Behind the
               // final frame: it waits for those of the sender's other ranks.
  kVerified,   // Receiver: the ticket is complete and verified.
  kAbort,      // Both: the ticket is over, `code` says why. Empty ticket: the handshake failed.
  kCarried,    // Both: a word about frames that go beside the connection (payload_carrier.h). It is
               // also the type of their headers, which no connection sends.
};

// Why a ticket or a connection was given up. Numbers are part of the wire.
enum class AbortCode : uint32_t {
  kNone = 0,
  kCancelled = 1,         // The other side's node gave the ticket up.
  kUnknownTicket = 2,     // Never expected here, or ended.
  kWrongSender = 3,       // The ticket belongs to another incarnation.
  kStaleEpoch = 4,        // A block of the ticket has moved on to another owner.
  kOutOfRange = 5,        // Layer, tokens, heads or size do not fit the ticket.
  kOverlap = 6,           // Part of the range was received before.
  kChecksum = 7,          // The payload's CRC32C is not the trailer's.
  kDigestMismatch = 8,    // Layout, model or token digest differ.
  kIncomplete = 9,        // The final frame came before all bytes.
  kUnauthenticated = 10,  // Handshake: the proof is wrong.
  kWrongReceiver = 11,    // Handshake: the sender means another incarnation or rank.
  kProtocol = 12,         // Handshake: not a message of this protocol version.
  kDeadline = 13,         // No progress within the sender's deadline.
};
inline constexpr uint32_t kNumAbortCodes = 14;

std::string_view ToString(AbortCode code);

// The status of a ticket that the peer gave up.
absl::Status StatusOfAbort(AbortCode code);

struct FrameHeader {
  FrameType type = FrameType::kData;
  uint64_t sequence = 0;  // From 1, per direction of a connection; a repeated one is a duplicate.
  TicketId ticket;
  FrameRange range;  // kData.
  uint32_t payload_bytes = 0;
  AbortCode code = AbortCode::kNone;  // kAbort.
  // kAck. Of kHello and kChallenge: PayloadCarrier::version, 0 for none.
  uint64_t value = 0;
  bool operator==(const FrameHeader&) const = default;
};

// Not of nothing, and without overflow; whether anybody has it is another question.
bool IsRange(const FrameRange& range);

using HeaderBytes = std::array<std::byte, kHeaderBytes>;
using TrailerBytes = std::array<std::byte, kTrailerBytes>;

HeaderBytes EncodeHeader(const FrameHeader& header);

// Everything that can be judged without knowing the ticket: magic, version, checksum, type, sign of
// the ranges, payload size against the type's cap. DATA_LOSS or INVALID_ARGUMENT names the defect.
absl::StatusOr<FrameHeader> DecodeHeader(std::span<const std::byte, kHeaderBytes> bytes,
                                         uint32_t max_data_payload = kMaxDataPayloadBytes);

inline constexpr uint32_t kTrailerAbandoned = 1;

struct FrameTrailer {
  uint32_t crc32c = 0;
  uint32_t flags = 0;
};
TrailerBytes EncodeTrailer(const FrameTrailer& trailer);
FrameTrailer DecodeTrailer(std::span<const std::byte, kTrailerBytes> bytes);

// What kFinal carries.
struct FinalBody {
  HandoffDigests digests;
  int32_t num_tokens = 0;  // Prompt length the sender transferred.
  TokenOutput first;       // At most kMaxTopLogprobs alternatives.
  bool operator==(const FinalBody&) const = default;
};

// INVALID_ARGUMENT with more than kMaxTopLogprobs alternatives.
absl::StatusOr<std::vector<std::byte>> EncodeFinal(const FinalBody& body);
absl::StatusOr<FinalBody> DecodeFinal(std::span<const std::byte> bytes);

}  // namespace baton
