// Every field of a frame's header, its trailer, the final frame's body and the handshake's bodies,
// out of the range that its receiver's code assumes. Complete: the rows of each struct cover its
// bytes without a gap, so that a field that is added fails the test. What only a ticket can judge
// goes through the ledger, below; the first token's meaning is the node's:
// tests/unit/decode_worker/first_token_test.cc. Words about NCCL: nccl/words_test.cc.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "common/base/crc32c.h"
#include "common/transport/handshake.h"
#include "common/transport/receive_ledger.h"
#include "common/transport/wire.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using Bytes = std::vector<std::byte>;

// A field of some bytes and values of it that are refused; with none, why any is right here.
struct Field {
  const char* name;
  size_t offset;
  size_t size;
  std::vector<uint64_t> bad;
  const char* any = "";
};

constexpr uint64_t kMinus1 = ~uint64_t{0};
constexpr uint64_t kMax32 = std::numeric_limits<int32_t>::max();
uint64_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
const uint64_t kNan = BitsOf(std::numeric_limits<float>::quiet_NaN());
const uint64_t kInf = BitsOf(std::numeric_limits<float>::infinity());

void Put(Bytes* bytes, const Field& field, uint64_t value) {
  std::memcpy(bytes->data() + field.offset, &value, field.size);  // Little endian, like the host.
}

// The fields follow each other up to `end`; `read` accepts `good`, and refuses each bad value
// alone.
void ExpectEachRefused(const Bytes& good, size_t end, const std::vector<Field>& fields,
                       const std::function<bool(Bytes)>& read) {
  EXPECT_TRUE(read(good));
  size_t next = 0;
  for (const Field& field : fields) {
    EXPECT_EQ(field.offset, next) << field.name;
    next = field.offset + field.size;
    EXPECT_EQ(field.bad.empty(), *field.any != '\0') << field.name;
    for (uint64_t value : field.bad) {
      Bytes bytes = good;
      Put(&bytes, field, value);
      EXPECT_FALSE(read(bytes)) << field.name << " = " << value;
    }
  }
  EXPECT_EQ(next, end);
}

template <typename Container>
Bytes ToBytes(const Container& bytes) {
  return Bytes(bytes.begin(), bytes.end());
}

TEST(FrameOutOfRangeTest, EveryFieldOfAHeader) {
  const FrameHeader header{.type = FrameType::kData,
                           .sequence = 1,
                           .ticket = {1, 2},
                           .range = {1, KvPlane::kV, 8, 16, 0, 4},
                           .payload_bytes = 4096};
  const std::vector<Field> fields = {
      {"magic", 0, 4, {0, kMinus1}},
      {"version", 4, 2, {0, 1, 3, kMinus1}},
      {"type", 6, 1, {0, 11, 255}},
      {"plane", 7, 1, {2, 255}},
      {"sequence", 8, 8, {}, "FrameStream compares it with the last one: FrameStreamTest"},
      {"ticket.hi", 16, 8, {}, "a name: LedgerOutOfRangeTest"},
      {"ticket.lo", 24, 8, {}, "a name: LedgerOutOfRangeTest"},
      {"layer", 32, 4, {kMinus1, kMax32 + 1}},
      {"first_token", 36, 4, {kMinus1, kMax32 + 1, kMax32 - 15}},
      {"num_tokens", 40, 4, {0, kMinus1, kMax32 + 1, kMax32}},
      {"first_head", 44, 4, {kMinus1, kMax32 + 1, kMax32 - 3}},
      {"num_heads", 48, 4, {0, kMinus1, kMax32 + 1}},
      {"payload_bytes", 52, 4, {0, kMaxDataPayloadBytes + 1, kMinus1}},
      {"code", 56, 4, {kNumAbortCodes, kMinus1}},
      {"zero", 60, 4, {1, kMinus1}},
      {"value", 64, 8, {}, "of acknowledgements: OutgoingLinkTest"},
      {"zero", 72, 4, {1, kMinus1}},
      {"crc32c", 76, 4, {}, "written anew here; WireTest flips each bit of it"},
  };
  ExpectEachRefused(ToBytes(EncodeHeader(header)), kHeaderBytes, fields, [](Bytes bytes) {
    HeaderBytes sealed;
    std::copy(bytes.begin(), bytes.end(), sealed.begin());
    const uint32_t crc = Crc32c(std::span<const std::byte>(sealed).first(kHeaderBytes - 4));
    std::memcpy(sealed.data() + kHeaderBytes - 4, &crc, sizeof(crc));
    return DecodeHeader(sealed).ok();
  });
}

// A code without a failure would look like a verified transfer.
TEST(FrameOutOfRangeTest, EveryAbortCodeIsAFailure) {
  for (uint32_t code = 0; code < kNumAbortCodes + 2; ++code) {
    EXPECT_FALSE(StatusOfAbort(static_cast<AbortCode>(code)).ok()) << code;
  }
}

TEST(FrameOutOfRangeTest, EveryFieldOfAFinalBody) {
  const FinalBody body{.digests = {1, 2, 3},
                       .num_tokens = 77,
                       .first = {.position = 77, .token = 5, .top = {{.token = 5}}}};
  const std::vector<Field> fields = {
      {"digests.layout", 0, 8, {}, "compared by the ledger"},
      {"digests.model", 8, 8, {}, "compared by the ledger"},
      {"digests.tokens", 16, 8, {}, "compared by the ledger"},
      {"num_tokens", 24, 4, {kMinus1, kMax32 + 1}},
      {"first.position", 28, 4, {kMinus1, kMax32 + 1}},
      {"first.token", 32, 4, {kMinus1, kMax32 + 1}},
      {"first.logprob", 36, 4, {kNan, kInf}},
      {"first.logits_digest", 40, 8, {}, "any 64 bits, shown as they are"},
      {"first.finish", 48, 1, {3, 255}},
      {"first.top.size", 49, 4, {0, 2, 1 << 29, kMinus1}},
      {"first.top[0].token", 53, 4, {kMinus1, kMax32 + 1}},
      {"first.top[0].logprob", 57, 4, {kNan, kInf}},
  };
  const Bytes good = *EncodeFinal(body);
  ExpectEachRefused(good, good.size(), fields,
                    [](const Bytes& bytes) { return DecodeFinal(bytes).ok(); });
}

const std::vector<uint64_t> kBadBlockSizes = {0, kMinus1, kMax32};
const std::vector<uint64_t> kBadHeads = {kMinus1, kMax32};

TEST(HandshakeOutOfRangeTest, EveryFieldOfAHello) {
  const Hello hello{.sender = 1,
                    .receiver = 2,
                    .sender_place = {3, 4},
                    .nonce = {},
                    .pool = {16, {0, 4}}};
  const size_t pool = 20 + sizeof(Nonce);
  const std::vector<Field> fields = {
      {"sender", 0, 8, {0}},
      {"receiver", 8, 8, {0}},
      {"sender_place.rank", 16, 1, {4, 255}},
      {"sender_place.size", 17, 1, {0, 3, 9, 255}},
      {"receiver_place.rank", 18, 1, {1, 255}},
      {"receiver_place.size", 19, 1, {0, 9, 255}},
      {"nonce", 20, sizeof(Nonce), {}, "random"},
      {"pool.block_size", pool, 4, kBadBlockSizes},
      {"pool.heads.first", pool + 4, 4, kBadHeads},
      {"pool.heads.count", pool + 8, 4, kBadBlockSizes},
  };
  ExpectEachRefused(ToBytes(EncodeHello(hello)), kHelloBytes, fields,
                    [](const Bytes& bytes) { return DecodeHello(bytes).ok(); });
}

TEST(HandshakeOutOfRangeTest, EveryFieldOfAChallenge) {
  const Challenge challenge{.nonce = {}, .pool = {16, {0, 4}}, .proof = {}};
  const size_t pool = sizeof(Nonce);
  const std::vector<Field> fields = {
      {"nonce", 0, sizeof(Nonce), {}, "random"},
      {"pool.block_size", pool, 4, kBadBlockSizes},
      {"pool.heads.first", pool + 4, 4, kBadHeads},
      {"pool.heads.count", pool + 8, 4, kBadBlockSizes},
      {"proof", pool + 12, sizeof(Mac), {}, "compared with one's own: TcpHostileTest"},
  };
  ExpectEachRefused(ToBytes(EncodeChallenge(challenge)), kChallengeBytes, fields,
                    [](const Bytes& bytes) { return DecodeChallenge(bytes).ok(); });
}

// ---- Against a ticket --------------------------------------------------------------------------

constexpr Incarnation kSender = 5;
constexpr TicketId kTicket{1, 2};

// A ticket for tokens 2 to 13 in blocks of 8 tokens, of a model with one layer and two heads.
class LedgerOutOfRangeTest : public testing::Test {
 protected:
  LedgerOutOfRangeTest() : epochs_(4) {
    const KvLayout layout{.block_size = 8,
                          .groups = {{.num_layers = 1, .num_kv_heads = 2, .k_dim = 4, .v_dim = 0}}};
    cache_ = *KvCache::Create(layout, 4);
    const TransportOptions options{.incarnation = 9, .cache = cache_.get(), .epochs = &epochs_};
    ledger_ = std::make_unique<ReceiveLedger>(
        options, &counters_, [this](TransferEvent event) { events_.push_back(std::move(event)); });
    Expect();
  }
  void Expect() {
    ledger_->Expect({.ticket = kTicket,
                     .sender = kSender,
                     .blocks = {{3, 0}, {1, 0}},
                     .first_token = 2,
                     .num_tokens = 14,
                     .digests = {1, 2, 3}});
  }
  static FrameHeader Data() {
    return {.type = FrameType::kData,
            .ticket = kTicket,
            .range = {0, KvPlane::kK, 2, 12, 0, 2},
            .payload_bytes = 12 * 2 * 4 * 4};
  }
  static FinalBody Final() {
    return {.digests = {1, 2, 3}, .num_tokens = 14, .first = {.position = 14, .token = 3}};
  }

  BlockEpochs epochs_;
  std::unique_ptr<KvCache> cache_;
  CounterBoard counters_;
  std::vector<TransferEvent> events_;
  std::unique_ptr<ReceiveLedger> ledger_;
};

struct FrameRow {
  const char* field;
  AbortCode code;
  std::function<void(FrameHeader*)> spoil;
};

TEST_F(LedgerOutOfRangeTest, EveryFieldOfADataFrame) {
  const auto range = AbortCode::kOutOfRange;
  const std::vector<FrameRow> rows = {
      {"ticket", AbortCode::kUnknownTicket, [](auto* h) { h->ticket.lo = 9; }},
      {"ticket", AbortCode::kUnknownTicket, [](auto* h) { h->ticket = {}; }},
      {"layer", range, [](auto* h) { h->range.layer = 1; }},
      {"layer", range, [](auto* h) { h->range.layer = INT32_MAX; }},
      {"plane", range, [](auto* h) { h->range.plane = KvPlane::kV; }},  // The model has none.
      {"first_token", range, [](auto* h) { h->range.first_token = 1; }},
      {"first_token", range, [](auto* h) { h->range.first_token = 3; }},
      {"first_token", range, [](auto* h) { h->range.first_token = INT32_MAX - 12; }},
      {"num_tokens", range, [](auto* h) { h->range.num_tokens = 13; }},
      {"num_tokens", range, [](auto* h) { h->range.num_tokens = INT32_MAX - 2; }},
      {"first_head", range, [](auto* h) { h->range.first_head = 1; }},
      {"first_head", range, [](auto* h) { h->range.first_head = INT32_MAX - 2; }},
      {"num_heads", range, [](auto* h) { h->range.num_heads = 3; }},
      {"num_heads", range, [](auto* h) { h->range.num_heads = INT32_MAX; }},
      {"payload_bytes", range, [](auto* h) { h->payload_bytes -= 1; }},
      {"payload_bytes", range, [](auto* h) { h->payload_bytes += 1; }},
  };
  for (const FrameRow& row : rows) {
    FrameHeader header = Data();
    row.spoil(&header);
    const auto admission = ledger_->Admit(header, {kSender, {}});
    EXPECT_EQ(admission.kind, ReceiveLedger::Admission::Kind::kRefused) << row.field;
    EXPECT_EQ(admission.code, row.code) << row.field;
    EXPECT_TRUE(admission.memory.empty()) << row.field;
    if (row.code != range) continue;
    // The rightful sender's ticket has ended; the next row's is a new one.
    ASSERT_EQ(events_.size(), 1u) << row.field;
    EXPECT_FALSE(events_[0].status.ok());
    events_.clear();
    Expect();
  }
  EXPECT_EQ(ledger_->Admit(Data(), {kSender, {}}).kind, ReceiveLedger::Admission::Kind::kWrite);
}

TEST_F(LedgerOutOfRangeTest, EveryFieldOfAFinalFrameThatATicketKnows) {
  const std::vector<std::function<void(FinalBody*)>> rows = {
      [](auto* b) { b->digests.layout += 1; }, [](auto* b) { b->digests.model += 1; },
      [](auto* b) { b->digests.tokens += 1; }, [](auto* b) { b->num_tokens = 13; },
      [](auto* b) { b->num_tokens = 0; },      [](auto* b) { b->num_tokens = INT32_MAX; },
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ(ledger_->Admit(Data(), {kSender, {}}).kind, ReceiveLedger::Admission::Kind::kWrite);
    ledger_->Commit(Data(), {kSender, {}});
    FinalBody body = Final();
    rows[i](&body);
    events_.clear();
    EXPECT_EQ(ledger_->Finish(kTicket, {kSender, {}}, body), AbortCode::kDigestMismatch) << i;
    ASSERT_EQ(events_.size(), 1u);
    EXPECT_FALSE(events_[0].status.ok());
    Expect();
  }
}

}  // namespace
}  // namespace baton
