// A data connection as its receiver sees it. The input is a program that writes frames, good and
// bad; the bytes go through FrameStream, IncomingLink and ReceiveLedger, once in as few pieces as
// possible and once cut at drawn points, and must lead to the same end.
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/crc32c.h"
#include "common/transport/little_endian.h"
#include "common/transport/tcp/incoming_link.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/memory_stream.h"

namespace baton {
namespace {

constexpr Incarnation kSender = 5;
constexpr Incarnation kReceiver = 9;
constexpr TransportSecret kSecret{1, 2, 3};
constexpr int32_t kBlocks = 8;
constexpr int32_t kBlockSize = 4;
constexpr int32_t kTickets = 3;  // A fourth is unknown.
constexpr HandoffDigests kDigests{1, 2, 3};

TicketId Ticket(uint64_t index) { return {.hi = 7, .lo = index + 1}; }

// Ticket i may write tokens [i, 7 + i) into blocks 2i and 2i + 1.
ExpectArgs Args(int32_t i) {
  return {.ticket = Ticket(i),
          .sender = i == 2 ? kSender + 1 : kSender,
          .blocks = {{2 * i, 0}, {2 * i + 1, 0}},
          .first_token = i,
          .num_tokens = i + 6,
          .digests = kDigests};
}

// ---- The sender's bytes -------------------------------------------------------------------------

struct Program {
  struct Failure {
    size_t offset = 0;  // In the stream.
    TicketId ticket;
  };
  std::string bytes;  // After the handshake.
  bool handshake = true;
  bool good_proof = true;
  std::vector<Failure> failures;  // The node gives tickets up; ascending.
  bool finals[kTickets + 1] = {};  // A whole final frame of the ticket was written.
  bool raw = false;                // Some bytes are the input's own, and may be any frame.
};

class FrameWriter {
 public:
  explicit FrameWriter(std::string* out, uint64_t sequence) : out_(out), sequence_(sequence) {}

  // `spoil`: 1 the header's checksum, 2 the payload's, 4 abandoned, 8 a repeated frame, 16 a gap.
  void Write(FrameHeader header, std::string_view payload, uint8_t spoil = 0) {
    header.sequence = sequence_ + 1 - ((spoil & 8) != 0) + ((spoil & 16) != 0);
    sequence_ = std::max(sequence_, header.sequence);
    HeaderBytes head = EncodeHeader(header);
    if ((spoil & 1) != 0) head[79] ^= std::byte{1};
    Append(head);
    if (header.payload_bytes == 0) return;
    out_->append(payload);
    const uint32_t crc = ExtendCrc32c(0, AsBytes(payload)) ^ ((spoil & 2) != 0);
    Append(EncodeTrailer({.crc32c = crc, .flags = (spoil & 4) != 0 ? kTrailerAbandoned : 0}));
  }

 private:
  void Append(std::span<const std::byte> bytes) {
    out_->append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

  std::string* const out_;
  uint64_t sequence_;
};

void WriteData(FuzzInput* in, FrameWriter* out) {
  const uint8_t spoil = in->Byte();
  FrameHeader header{.type = FrameType::kData, .ticket = Ticket(in->Below(kTickets + 1))};
  FrameRange& range = header.range;
  range.plane = in->Byte() % 2 == 0 ? KvPlane::kK : KvPlane::kV;
  range.layer = static_cast<int32_t>(in->Below(3));
  range.first_token = static_cast<int32_t>(in->Below(10));
  range.num_tokens = static_cast<int32_t>(in->Below(9));
  range.first_head = static_cast<int32_t>(in->Below(3));
  range.num_heads = static_cast<int32_t>(in->Below(4));
  header.payload_bytes = static_cast<uint32_t>(range.num_tokens * range.num_heads * 8);
  if ((spoil & 32) != 0) header.payload_bytes = static_cast<uint32_t>(in->Number(2)) % 600;
  if ((spoil & 64) != 0) range.first_token = static_cast<int32_t>(in->Number(4));
  if ((spoil & 128) != 0) range.num_heads = static_cast<int32_t>(in->Number(4));
  std::string payload(header.payload_bytes, static_cast<char>('a' + in->Below(26)));
  const std::string_view drawn = in->Take(payload.size() / 8);
  payload.replace(0, drawn.size(), drawn);
  out->Write(header, payload, spoil & 31);
}

void WriteFinal(FuzzInput* in, FrameWriter* out, Program* program) {
  const uint8_t spoil = in->Byte();
  const uint64_t ticket = in->Below(kTickets + 1);
  if ((spoil & 7) == 0) program->finals[ticket] = true;
  FinalBody body{.digests = kDigests,
                 .num_tokens = static_cast<int32_t>(ticket) + 6 + ((spoil & 32) != 0),
                 .first = {.position = static_cast<int32_t>(in->Number(4)),
                           .token = static_cast<int32_t>(in->Number(4))}};
  if ((spoil & 64) != 0) body.digests.tokens = in->Number(8);
  body.first.top.resize(in->Below(4));
  const auto bytes = *EncodeFinal(body);
  std::string payload(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if ((spoil & 128) != 0) payload = in->Take(in->Byte());
  out->Write({.type = FrameType::kFinal,
              .ticket = Ticket(ticket),
              .payload_bytes = static_cast<uint32_t>(payload.size())},
             payload, spoil & 31);
}

// Every byte, frames that cover a whole ticket, and whatever else is in the language of the input.
void WriteOperation(FuzzInput* in, FrameWriter* out, Program* program) {
  switch (in->Below(7)) {
    case 0:
      program->raw = true;
      program->bytes += in->Take(in->Byte());
      return;
    case 1:
    case 2:
      return WriteData(in, out);
    case 3:
      return WriteFinal(in, out, program);
    case 4: {
      const uint8_t spoil = in->Byte() & 31;
      return out->Write({.type = FrameType::kAbort,
                         .ticket = Ticket(in->Below(kTickets + 1)),
                         .code = static_cast<AbortCode>(in->Below(kNumAbortCodes + 1))},
                        "", spoil);
    }
    case 5: {
      const size_t back = std::min<size_t>(in->Byte(), program->bytes.size());
      const size_t offset = program->bytes.size() - back;
      if (!program->failures.empty() && program->failures.back().offset > offset) return;
      program->failures.push_back({offset, Ticket(in->Below(kTickets))});
      return;
    }
    default: {
      program->raw = true;
      const std::string_view body = in->Take(in->Byte());
      const uint8_t spoil = in->Byte() & 31;
      return out->Write({.type = static_cast<FrameType>(in->Below(11)),
                         .payload_bytes = static_cast<uint32_t>(body.size())},
                        body, spoil);
    }
  }
}

// All of a ticket, so that the way to a verified one is short.
void WriteWholeTicket(int32_t i, FrameWriter* out, Program* program) {
  program->finals[i] = true;
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      out->Write({.type = FrameType::kData,
                  .ticket = Ticket(i),
                  .range = {layer, plane, i, 6, 0, 2},
                  .payload_bytes = 6 * 2 * 8},
                 std::string(6 * 2 * 8, static_cast<char>('A' + layer)));
    }
  }
  const auto body = *EncodeFinal({.digests = kDigests, .num_tokens = i + 6});
  out->Write({.type = FrameType::kFinal,
              .ticket = Ticket(i),
              .payload_bytes = static_cast<uint32_t>(body.size())},
             {reinterpret_cast<const char*>(body.data()), body.size()});
}

Program Compile(FuzzInput* in) {
  Program program;
  const uint8_t how = in->Byte();
  program.handshake = (how & 1) == 0;
  program.good_proof = (how & 6) != 6;
  FrameWriter out(&program.bytes, program.handshake ? 2 : 0);
  if ((how & 8) != 0) WriteWholeTicket(0, &out, &program);
  for (int i = 0; i < 40 && !in->empty() && program.bytes.size() < size_t{16} << 10; ++i) {
    WriteOperation(in, &out, &program);
  }
  if ((how & 16) != 0) WriteWholeTicket(1, &out, &program);
  return program;
}

// ---- The receiver -------------------------------------------------------------------------------

struct Pool {
  Pool() : epochs(kBlocks) {
    const KvLayout layout{
        .block_size = kBlockSize,
        .groups = {{.num_layers = 2, .num_kv_heads = 2, .k_dim = 2, .v_dim = 2}}};
    cache = *KvCache::Create(layout, kBlocks);
  }
  // The bytes of a block in every plane.
  std::string Block(BlockId block) const {
    std::string bytes;
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
        for (int32_t head = 0; head < 2; ++head) {
          const auto part = cache->HeadBlock(layer, plane, block, head);
          bytes.append(reinterpret_cast<const char*>(part.data()), part.size());
        }
      }
    }
    return bytes;
  }
  void Clear() const {
    for (BlockId block = 0; block < kBlocks; ++block) {
      for (int32_t layer = 0; layer < 2; ++layer) {
        for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
          for (int32_t head = 0; head < 2; ++head) {
            const auto part = cache->HeadBlock(layer, plane, block, head);
            std::memset(part.data(), 0, part.size());
          }
        }
      }
    }
  }

  BlockEpochs epochs;
  std::unique_ptr<KvCache> cache;
};

class Receiver {
 public:
  Receiver(const Program& program, Pool* pool)
      : program_(program),
        pool_(pool),
        transport_{.secret = kSecret,
                   .incarnation = kReceiver,
                   .cache = pool->cache.get(),
                   .epochs = &pool->epochs},
        ledger_(transport_, &counters_, [this](TransferEvent e) { OnEvent(std::move(e)); }) {
    static std::vector<std::byte> scratch(4096);
    pool_->Clear();
    link_.emplace(std::make_unique<MemoryStream>(&wire_),
                  IncomingLink::Options{.transport = &transport_,
                                        .stream = {.counters = &counters_, .scratch = scratch},
                                        .ledger = &ledger_,
                                        .counters = &counters_,
                                        .on_unknown_ticket = [] {},
                                        .on_authenticated = [](IncomingLink*) {}});
    for (int32_t i = 0; i < kTickets; ++i) ledger_.Expect(Args(i));
  }

  // The answers so far, checked and without their frames.
  std::vector<FrameHeader> Send(std::string_view bytes) {
    if (bytes.empty() || !open_) return TakeAnswers();
    wire_.Send(bytes);
    if (absl::Status status = link_->OnReady(true, true, kNever); !status.ok()) {
      CheckRefusal(status, {absl::StatusCode::kInvalidArgument, absl::StatusCode::kDataLoss,
                            absl::StatusCode::kUnauthenticated,
                            absl::StatusCode::kResourceExhausted});
      Close(status);
    }
    BATON_CHECK(!open_ || wire_.taken == wire_.to_reader.size());
    return TakeAnswers();
  }

  void Fail(TicketId ticket) {
    failing_ = true;
    ledger_.Fail(ticket, absl::CancelledError("given up"));
    failing_ = false;
  }

  // Hello and proof. False if the connection did not survive them.
  bool Handshake(bool good_proof) {
    const Hello hello{.sender = kSender,
                      .receiver = kReceiver,
                      .nonce = {4},
                      .pool = {.block_size = kBlockSize, .heads = {0, 2}}};
    const auto hello_bytes = EncodeHello(hello);
    if (Send(OneFrame(FrameType::kHello, 0, hello_bytes)).size() != 1) return false;
    const Challenge challenge = *DecodeChallenge(AsBytes(last_body_));
    PairKey key = DerivePairKey(kSecret, kSender, kReceiver);
    BATON_CHECK(SameMac(challenge.proof, ReceiverProof(key, hello, challenge)));
    if (!good_proof) key[0] ^= 1;
    const Mac proof = SenderProof(key, hello, challenge);
    const auto answers = Send(OneFrame(FrameType::kProof, 1, std::as_bytes(std::span(proof))));
    BATON_CHECK(answers.size() == 1);
    BATON_CHECK(answers[0].type == (good_proof ? FrameType::kAccepted : FrameType::kAbort));
    BATON_CHECK(link_->sender().incarnation == (good_proof ? kSender : 0));
    return good_proof;
  }

  // Closes; the invariants of the whole run hold. What happened, for comparison.
  std::string End() {
    if (open_) Close(absl::UnavailableError("the end of the input"));
    for (int32_t i = 0; i < kTickets; ++i) {
      const ExpectArgs args = Args(i);
      BATON_CHECK(!begun_[i] || ended_[i].has_value());
      if (ended_[i].has_value()) BATON_CHECK(*ended_[i] == Blocks(i));
      // What was there before stays.
      for (int32_t layer = 0; layer < 2; ++layer) {
        const auto first = pool_->cache->HeadBlock(layer, KvPlane::kK, args.blocks[0].block, 0);
        for (int32_t b = 0; b < 8 * args.first_token; ++b) BATON_CHECK(first[b] == std::byte{0});
      }
      log_ += Blocks(i);
    }
    BATON_CHECK(pool_->Block(kBlocks - 1) == std::string(pool_->Block(kBlocks - 1).size(), '\0'));
    BATON_CHECK(Blocks(2) == std::string(Blocks(2).size(), '\0'));  // Another sender's.
    const TransportCounters counters = counters_.Read();
    for (const int64_t count : {counters.frames_accepted, counters.bytes_accepted,
                                counters.duplicate_frames, counters.duplicate_ranges,
                                counters.checksum_failures, counters.abandoned_frames,
                                counters.malformed, counters.failed_handshakes}) {
      log_ += std::to_string(count) + " ";
    }
    for (const int64_t count : counters.refused) log_ += std::to_string(count) + " ";
    return log_;
  }

 private:
  static std::string OneFrame(FrameType type, uint64_t before, std::span<const std::byte> body) {
    std::string frame;
    FrameWriter(&frame, before)
        .Write({.type = type, .payload_bytes = static_cast<uint32_t>(body.size())},
               {reinterpret_cast<const char*>(body.data()), body.size()});
    return frame;
  }

  std::string Blocks(int32_t i) const { return pool_->Block(2 * i) + pool_->Block(2 * i + 1); }

  void OnEvent(TransferEvent event) {
    const auto i = static_cast<size_t>(event.ticket.lo - 1);
    BATON_CHECK(i < kTickets && !ended_[i].has_value());
    BATON_CHECK(i != 2 || failing_);  // Another sender's: nothing that comes here is about it.
    const bool begun = event.kind == TransferEvent::Kind::kBegun;
    log_ += std::to_string(i) + (begun ? " begun " : " ended ") +
            std::string(event.status.message()) + std::to_string(event.bytes) + "\n";
    if (begun) {
      BATON_CHECK(!begun_[i]);
      begun_[i] = true;
      return;
    }
    if (event.status.ok()) {
      BATON_CHECK(begun_[i] && event.bytes == 6 * 2 * 8 * 4);
      BATON_CHECK(program_.finals[i] || program_.raw);
    }
    link_->OnTicketEnded(event.ticket, event.status.ok());
    ended_[i] = Blocks(static_cast<int32_t>(i));
  }

  void Close(const absl::Status& status) {
    open_ = false;
    link_->OnClosed(status);
    log_ += "closed\n";
  }

  std::vector<FrameHeader> TakeAnswers() {
    std::vector<FrameHeader> headers;
    std::string_view rest = wire_.from_writer;
    while (!rest.empty()) {
      BATON_CHECK(rest.size() >= kHeaderBytes);
      const auto head = AsBytes(rest).first<kHeaderBytes>();
      headers.push_back(*DecodeHeader(head));
      BATON_CHECK(headers.back().sequence == ++answered_);
      rest.remove_prefix(kHeaderBytes);
      if (headers.back().payload_bytes == 0) continue;
      BATON_CHECK(rest.size() >= headers.back().payload_bytes + kTrailerBytes);
      last_body_ = rest.substr(0, headers.back().payload_bytes);
      rest.remove_prefix(last_body_.size());
      const FrameTrailer trailer = DecodeTrailer(AsBytes(rest).first<kTrailerBytes>());
      BATON_CHECK(trailer.flags == 0 && trailer.crc32c == Crc32c(AsBytes(last_body_)));
      rest.remove_prefix(kTrailerBytes);
    }
    wire_.from_writer.clear();
    return headers;
  }

  const Program& program_;
  Pool* const pool_;
  const TransportOptions transport_;
  CounterBoard counters_;
  ReceiveLedger ledger_;
  Wire wire_;
  std::optional<IncomingLink> link_;
  bool open_ = true;
  bool failing_ = false;
  std::string last_body_;
  uint64_t answered_ = 0;
  bool begun_[kTickets] = {};
  std::optional<std::string> ended_[kTickets];  // The blocks as they were then.
  std::string log_;
};

// Feeds the program in pieces of at most `piece()` bytes.
template <typename Piece>
std::string Play(const Program& program, Piece piece) {
  static Pool pool;
  Receiver receiver(program, &pool);
  if (program.handshake && !receiver.Handshake(program.good_proof)) return receiver.End();
  std::string_view rest = program.bytes;
  size_t at = 0;
  const auto feed = [&](size_t to) {
    while (at < to) {
      const size_t size = std::min(to - at, piece());
      receiver.Send(rest.substr(at, size));
      at += size;
    }
  };
  for (const Program::Failure& failure : program.failures) {
    feed(failure.offset);
    receiver.Fail(failure.ticket);
  }
  feed(rest.size());
  return receiver.End();
}

// ---- Frames on their own ------------------------------------------------------------------------

// What is read is written back as it was.
void DecodeAlone(FuzzInput in) {
  const uint8_t kind = in.Byte();
  const std::string_view text = in.Rest();
  const auto bytes = AsBytes(text);
  if (kind % 4 == 0) {
    const auto body = DecodeFinal(bytes);
    if (!body.ok()) return CheckRefusal(body.status());
    const auto again = *EncodeFinal(*body);
    BATON_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  } else if (kind % 4 == 1) {
    const auto hello = DecodeHello(bytes);
    if (!hello.ok()) return CheckRefusal(hello.status());
    const auto again = EncodeHello(*hello);
    BATON_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  } else if (kind % 4 == 2) {
    const auto challenge = DecodeChallenge(bytes);
    if (!challenge.ok()) return CheckRefusal(challenge.status());
    const auto again = EncodeChallenge(*challenge);
    BATON_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  } else {
    HeaderBytes head{};
    std::copy_n(bytes.begin(), std::min(bytes.size(), head.size()), head.begin());
    if (kind < 192) {  // Else as it is: the checksum is wrong.
      const HeaderBytes good = EncodeHeader({});
      std::copy_n(good.begin(), 6, head.begin());
      LittleEndianWriter(std::span(head).last(4))
          .Put(Crc32c(std::span<const std::byte>(head).first(kHeaderBytes - 4)));
    }
    const auto header = DecodeHeader(head);
    if (!header.ok()) {
      return CheckRefusal(header.status(),
                          {absl::StatusCode::kInvalidArgument, absl::StatusCode::kDataLoss});
    }
    BATON_CHECK(EncodeHeader(*header) == head);
  }
}

void Run(FuzzInput in) {
  if (in.Byte() % 8 == 0) return DecodeAlone(in);
  std::string cuts(in.Take(4));
  cuts.push_back('\x20');
  const Program program = Compile(&in);
  const std::string whole = Play(program, [] { return size_t{1} << 14; });
  size_t next = 0;
  const std::string cut = Play(
      program, [&] { return 1 + size_t{static_cast<uint8_t>(cuts[next++ % cuts.size()])}; });
  BATON_CHECK(whole == cut);
}

}  // namespace
}  // namespace baton

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baton::Run({data, size});
  return 0;
}
