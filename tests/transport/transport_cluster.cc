#include "tests/transport/transport_cluster.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "common/base/random.h"

namespace baton {
namespace {

// Of every limit: what may come late on a machine that does much else, and still is in time.
#ifdef BATON_SANITIZED
constexpr double kTimeScale = 5;
constexpr auto kPatience = std::chrono::seconds(60);
#else
constexpr double kTimeScale = 2;
constexpr auto kPatience = std::chrono::seconds(20);
#endif

std::byte* const kNowhere = reinterpret_cast<std::byte*>(int64_t{1} << 20);  // Not mapped.

struct Cell {
  int32_t layer = 0;
  KvPlane plane = KvPlane::kK;
  int32_t head = 0;  // In the model.
  int32_t token = 0;
};

uint8_t Pattern(const Cell& c, int64_t byte, uint64_t salt) {
  uint64_t key = salt;
  for (int64_t v : {int64_t{c.layer}, int64_t{static_cast<int>(c.plane)}, int64_t{c.head},
                    int64_t{c.token}, byte}) {
    key = key * 1000003 + static_cast<uint64_t>(v);
  }
  return static_cast<uint8_t>(Random::Mix(key));
}

// Calls fn(address, bytes, cell) for every token of every head of every plane.
template <typename Fn>
void ForEachCell(const KvCache& cache, HeadRange heads, const std::vector<BlockId>& blocks,
                 TokenRange tokens, Fn fn) {
  const KvLayout& layout = cache.layout();
  for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
    for (KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      const int64_t bytes = HeadTokenBytes(layout, layer, plane);
      for (int32_t h = 0; h < heads.count; ++h) {
        for (int32_t t = tokens.first; t < tokens.first + tokens.count; ++t) {
          std::byte* at = cache.HeadBlock(layer, plane, blocks[t / layout.block_size], h).data() +
                          (t % layout.block_size) * bytes;
          fn(at, bytes, Cell{layer, plane, heads.first + h, t});
        }
      }
    }
  }
}

}  // namespace

std::string NameOf(TransportKind kind) {
  if (kind == TransportKind::kLoopback) return "Loopback";
  if (kind == TransportKind::kTcp) return "Tcp";
  if (kind == TransportKind::kTls) return "Tls";
  return kind == TransportKind::kTcpStaged ? "TcpStaged" : "TcpDevice";
}

void EventLog::Add(TransferEvent event) {
  std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  changed_.notify_all();
}

const TransferEvent* EventLog::Find(TransferEvent::Kind kind, TicketId ticket,
                                    bool receiver) const {
  for (const TransferEvent& e : events_) {
    if (e.kind == kind && e.ticket == ticket && e.receiver == receiver) return &e;
  }
  return nullptr;
}

TransferEvent EventLog::WaitEnded(TicketId ticket, bool receiver) {
  std::unique_lock lock(mutex_);
  const TransferEvent* found = nullptr;
  changed_.wait_for(lock, kPatience, [&] {
    found = Find(TransferEvent::Kind::kEnded, ticket, receiver);
    return found != nullptr;
  });
  EXPECT_NE(found, nullptr) << (receiver ? "receiver" : "sender") << " never ended";
  if (found == nullptr) return {.status = absl::UnknownError("never ended")};
  return *found;
}

bool EventLog::WaitBegun(TicketId ticket) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(
      lock, kPatience, [&] { return Find(TransferEvent::Kind::kBegun, ticket, true) != nullptr; });
}

int EventLog::Count(TransferEvent::Kind kind, TicketId ticket, bool receiver) const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(std::count_if(events_.begin(), events_.end(), [&](const auto& e) {
    return e.kind == kind && e.ticket == ticket && e.receiver == receiver;
  }));
}

void TransportCluster::AddStager(Endpoint* e, TransportOptions* options) const {
  if (kind_ != TransportKind::kTcpStaged && kind_ != TransportKind::kTcpDevice) return;
  const bool device = kind_ == TransportKind::kTcpDevice;
  const KvLayout& layout = e->cache->layout();
  Buffer memory(device ? e->cache->base() : kNowhere,
                *KvCache::PoolBytes(layout, e->spec.num_blocks), nullptr);
  e->untouched =
      *KvCache::Create(layout, e->spec.num_blocks, std::move(memory), /*host=*/false);
  options->cache = e->untouched.get();
  if (device) {
    e->device = std::make_unique<LateCopies>(e->spec.incarnation);
    e->device_stager =
        *DeviceStager::Create(*e->device, *e->untouched,
                              [](const absl::Status& status) { ADD_FAILURE() << status; });
    options->stager = e->device_stager.get();
  } else {
    LateStager::Options stager = e->spec.stager;
    stager.seed += e->spec.incarnation;
    e->stager = std::make_unique<LateStager>(e->cache->base(), stager);
    options->stager = e->stager.get();
  }
}

std::unique_ptr<Endpoint> TransportCluster::Make(const EndpointSpec& spec,
                                                 KvTransport::EventSink also) {
  auto e = std::make_unique<Endpoint>();
  e->spec = spec;
  const KvLayout layout{.block_size = spec.block_size,
                        .groups = {{.num_layers = spec.num_layers,
                                    .num_kv_heads = spec.heads().count,
                                    .k_dim = spec.k_dim,
                                    .v_dim = spec.k_dim + 4,
                                    .dtype = DType::kBF16}}};
  e->cache = *KvCache::Create(layout, spec.num_blocks);
  e->epochs = std::make_unique<BlockEpochs>(spec.num_blocks);
  e->secret.fill(static_cast<uint8_t>(spec.incarnation));
  e->FillCanary(0xCD);
  TransportOptions options{
      .secret = e->secret,
      .incarnation = spec.incarnation,
      .cache = e->cache.get(),
      .epochs = e->epochs.get(),
      .sink =
          [raw = e.get(), also = std::move(also)](TransferEvent event) {
            raw->log.Add(event);
            if (also) also(std::move(event));
          },
      .place = spec.place,
      .kv_heads = spec.kv_heads,
      .max_frame_bytes = spec.max_frame_bytes};
  AddStager(e.get(), &options);
  if (kind_ == TransportKind::kLoopback) {
    auto made = LoopbackKvTransport::Create(hub_, "node-" + std::to_string(spec.incarnation) + "-" +
                                                      std::to_string(spec.place.rank),
                                            std::move(options));
    EXPECT_TRUE(made.ok()) << made.status();
    e->address = (*made)->endpoint();
    e->counters = [raw = made->get()] { return raw->counters(); };
    e->transport = *std::move(made);
  } else {
    auto made = TcpKvTransport::Create({.transport = std::move(options),
                                        .tls = kind_ == TransportKind::kTls,
                                        .time_scale = kTimeScale * spec.time_scale,
                                        .max_unauthenticated = spec.max_unauthenticated,
                                        .max_incoming = spec.max_incoming,
                                        .max_outgoing = spec.max_outgoing});
    EXPECT_TRUE(made.ok()) << made.status();
    e->address = (*made)->endpoint();
    e->counters = [raw = made->get()] { return raw->counters(); };
    e->transport = *std::move(made);
  }
  return e;
}

void Endpoint::FillCanary(uint8_t canary) {
  for (int32_t layer = 0; layer < spec.num_layers; ++layer) {
    for (KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      std::memset(
          cache->Plane(layer, plane), canary,
          HeadBlockBytes(cache->layout(), layer, plane) * spec.heads().count * spec.num_blocks);
    }
  }
}

void Endpoint::FillPattern(const std::vector<BlockId>& blocks, TokenRange tokens, uint64_t salt) {
  ForEachCell(*cache, spec.heads(), blocks, tokens,
              [&](std::byte* at, int64_t bytes, const Cell& cell) {
                for (int64_t b = 0; b < bytes; ++b) {
                  at[b] = static_cast<std::byte>(Pattern(cell, b, salt));
                }
              });
}

testing::AssertionResult Endpoint::IsCanaryBut(uint8_t canary) const {
  return IsCanaryBut(canary, {});
}

testing::AssertionResult Endpoint::IsCanaryBut(uint8_t canary,
                                               const std::vector<Write>& writes) const {
  auto expected = KvCache::Create(cache->layout(), spec.num_blocks);
  Endpoint image;
  image.spec = spec;
  image.cache = *std::move(expected);
  image.FillCanary(canary);
  for (const Write& w : writes) image.FillPattern(w.blocks, w.tokens, w.salt);
  for (int32_t layer = 0; layer < spec.num_layers; ++layer) {
    for (KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      const int64_t bytes =
          HeadBlockBytes(cache->layout(), layer, plane) * spec.heads().count * spec.num_blocks;
      const std::byte* want = image.cache->Plane(layer, plane);
      const std::byte* got = cache->Plane(layer, plane);
      const auto [at, unused] = std::mismatch(got, got + bytes, want);
      if (at == got + bytes) continue;
      return testing::AssertionFailure()
             << "layer " << layer << " plane " << static_cast<int>(plane) << " byte " << (at - got)
             << " is not as expected";
    }
  }
  return testing::AssertionSuccess();
}

ExpectArgs Handoff::expect() const {
  ExpectArgs args{.ticket = ticket,
                  .sender = from->spec.incarnation,
                  .first_token = first_token,
                  .num_tokens = num_tokens,
                  .digests = digests};
  for (BlockId b : to_blocks) args.blocks.push_back({b, (*to->epochs)[b].load()});
  return args;
}

StartArgs Handoff::start() const {
  return {.ticket = ticket,
          .endpoint = via.empty() ? to->address : via,
          .receiver_place = to->spec.place,
          .key = DerivePairKey(to->secret, from->spec.incarnation, to->spec.incarnation),
          .sender = from->spec.incarnation,
          .receiver = to->spec.incarnation,
          .blocks = from_blocks,
          .first_token = first_token,
          .num_tokens = num_tokens};
}

FinishArgs Handoff::finish() const {
  TokenOutput first{.position = num_tokens, .token = 17, .logprob = -0.5f};
  first.top = {{17, -0.5f}, {4, -1.5f}};
  return {.ticket = ticket, .digests = digests, .first = first};
}

void Handoff::PushAll(int32_t chunk_tokens) const {
  for (int32_t at = first_token; at < num_tokens; at += chunk_tokens) {
    const int32_t n = std::min(chunk_tokens, num_tokens - at);
    for (int32_t layer = 0; layer < from->spec.num_layers; ++layer) {
      from->transport->Push({ticket, layer, at, n});
    }
  }
}

void Handoff::Run(int32_t chunk_tokens) const {
  to->transport->Expect(expect());
  from->transport->Start(start());
  PushAll(chunk_tokens);
  from->transport->Finish(finish());
}

void Handoff::ExpectVerified() const {
  // The sender first: it has limits and ends by them at the latest, and says why. A receiver to
  // which nothing came has none.
  const TransferEvent sent = from->log.WaitEnded(ticket, false);
  ASSERT_TRUE(sent.status.ok()) << sent.status;
  const TransferEvent received = to->log.WaitEnded(ticket, true);
  EXPECT_TRUE(received.status.ok()) << received.status;
  EXPECT_EQ(received.first, finish().first);
  EXPECT_EQ(received.bytes, sent.bytes);
  EXPECT_EQ(to->log.Count(TransferEvent::Kind::kBegun, ticket, true), tokens().count > 0 ? 1 : 0);
  EXPECT_EQ(to->log.Count(TransferEvent::Kind::kEnded, ticket, true), 1);
  EXPECT_EQ(from->log.Count(TransferEvent::Kind::kEnded, ticket, false), 1);
}

Handoff MakeHandoff(Endpoint* from, Endpoint* to, TokenRange tokens, int32_t index) {
  Handoff h{.ticket = {0xABC0 + from->spec.incarnation, 0x1000 + static_cast<uint64_t>(index)},
            .from = from,
            .to = to,
            .first_token = tokens.first,
            .num_tokens = tokens.first + tokens.count};
  Random random(99 + index);
  auto draw = [&](const Endpoint& e) {
    const int32_t n = (h.num_tokens + e.spec.block_size - 1) / e.spec.block_size;
    const int32_t first = index * n;
    EXPECT_LE(first + n, e.spec.num_blocks);
    std::vector<BlockId> blocks;
    for (int32_t i = 0; i < n; ++i) blocks.push_back(first + i);
    for (int32_t i = n - 1; i > 0; --i) std::swap(blocks[i], blocks[random.Below(i + 1)]);
    return blocks;
  };
  h.from_blocks = draw(*from);
  h.to_blocks = draw(*to);
  from->FillPattern(h.from_blocks, {0, h.num_tokens}, h.ticket.lo);
  return h;
}

}  // namespace baton
