#include "tests/transport/ranked_worker.h"

#include <algorithm>
#include <utility>

#include "common/transport/pair_key.h"

namespace baton {
namespace {

constexpr uint8_t kCanary = 0xCD;

std::vector<BlockId> BlocksFor(const RankedWorker& worker, int32_t num_tokens) {
  const EndpointSpec& spec = worker.ranks[0]->spec;
  std::vector<BlockId> blocks;
  for (int32_t i = 0; i * spec.block_size < num_tokens; ++i) {
    blocks.push_back(spec.num_blocks - 1 - i);
  }
  EXPECT_LE(blocks.size(), static_cast<size_t>(spec.num_blocks));
  return blocks;
}

}  // namespace

RankedWorker::RankedWorker(TransportCluster* cluster, const EndpointSpec& spec)
    : RankedWorker(spec, [cluster](const EndpointSpec& rank, KvTransport::EventSink also) {
        return cluster->Make(rank, std::move(also));
      }) {}

RankedWorker::RankedWorker(const EndpointSpec& spec, const MakeRank& make)
    : transport(spec.kv_heads, [this](TransferEvent event) { log.Add(std::move(event)); }) {
  std::vector<KvTransport*> children;
  for (int32_t r = 0; r < spec.place.size; ++r) {
    EndpointSpec rank = spec;
    rank.place.rank = r;
    if (r == spec.patient_rank) rank.time_scale *= 20;
    ranks.push_back(make(rank, transport.SinkOf(r)));
    children.push_back(ranks.back()->transport.get());
  }
  transport.SetRanks(children);
}

RankedWorker::~RankedWorker() {
  transport.Close();
  ranks.clear();
}

std::vector<DataRank> RankedWorker::addresses() const {
  std::vector<DataRank> addresses;
  for (const auto& rank : ranks) addresses.push_back({rank->address, rank->spec.heads()});
  return addresses;
}

void RankedHandoff::Expect() const {
  ExpectArgs args{.ticket = ticket,
                  .sender = from->ranks[0]->spec.incarnation,
                  .first_token = first_token,
                  .num_tokens = num_tokens,
                  .digests = {1, 2, 3}};
  for (BlockId b : to_blocks) args.blocks.push_back({b, (*to->ranks[0]->epochs)[b].load()});
  to->transport.Expect(std::move(args));
}

void RankedHandoff::Start() const {
  const Incarnation sender = from->ranks[0]->spec.incarnation;
  const Incarnation receiver = to->ranks[0]->spec.incarnation;
  from->transport.Start({.ticket = ticket,
                         .receivers = via.empty() ? to->addresses() : via,
                         .key = DerivePairKey(to->ranks[0]->secret, sender, receiver),
                         .sender = sender,
                         .receiver = receiver,
                         .blocks = from_blocks,
                         .first_token = first_token,
                         .num_tokens = num_tokens});
}

void RankedHandoff::PushAll(int32_t chunk_tokens) const {
  for (int32_t at = first_token; at < num_tokens; at += chunk_tokens) {
    const int32_t n = std::min(chunk_tokens, num_tokens - at);
    for (int32_t layer = 0; layer < from->ranks[0]->spec.num_layers; ++layer) {
      from->transport.Push({ticket, layer, at, n});
    }
  }
}

void RankedHandoff::Finish() const {
  from->transport.Finish({.ticket = ticket,
                          .digests = {1, 2, 3},
                          .first = {.position = num_tokens, .token = 17, .logprob = -0.5f}});
}

void RankedHandoff::Run(int32_t chunk_tokens) const {
  Expect();
  Start();
  PushAll(chunk_tokens);
  Finish();
}

int64_t RankedHandoff::bytes() const {
  int64_t bytes = 0;
  for (const auto& rank : to->ranks) {
    const KvLayout& layout = rank->cache->layout();
    for (int32_t layer = 0; layer < NumLayers(layout); ++layer) {
      for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
        bytes += HeadTokenBytes(layout, layer, plane) * rank->spec.heads().count * tokens().count;
      }
    }
  }
  return bytes;
}

void RankedHandoff::ExpectVerified() const {
  const TransferEvent received = to->log.WaitEnded(ticket, true);
  if (testing::Test::HasFailure()) return;  // The other side would be waited for as long.
  const TransferEvent sent = from->log.WaitEnded(ticket, false);
  EXPECT_TRUE(received.status.ok()) << received.status;
  EXPECT_TRUE(sent.status.ok()) << sent.status;
  EXPECT_EQ(received.first.token, 17);
  EXPECT_EQ(received.bytes, bytes());
  EXPECT_EQ(sent.bytes, bytes());
  EXPECT_EQ(to->log.Count(TransferEvent::Kind::kBegun, ticket, true), tokens().count > 0 ? 1 : 0);
  EXPECT_EQ(to->log.Count(TransferEvent::Kind::kEnded, ticket, true), 1);
  EXPECT_EQ(from->log.Count(TransferEvent::Kind::kEnded, ticket, false), 1);
  for (const auto& rank : to->ranks) {
    EXPECT_TRUE(rank->IsCanaryBut(kCanary, {{to_blocks, tokens(), ticket.lo}}))
        << "rank " << rank->spec.place.rank;
  }
}

void RankedHandoff::ExpectFailed() const {
  EXPECT_FALSE(to->log.WaitEnded(ticket, true).status.ok());
  EXPECT_FALSE(from->log.WaitEnded(ticket, false).status.ok());
  EXPECT_EQ(to->log.Count(TransferEvent::Kind::kEnded, ticket, true), 1);
  EXPECT_EQ(from->log.Count(TransferEvent::Kind::kEnded, ticket, false), 1);
}

RankedHandoff RankedHandoff::Again() const {
  RankedHandoff again = *this;
  ++again.ticket.hi;
  for (auto& rank : to->ranks) {
    for (const BlockId block : to_blocks) ++(*rank->epochs)[block];
  }
  return again;
}

void RankedHandoff::RunToTheEnd(int32_t chunk_tokens) const {
  RankedHandoff attempt = *this;
  for (int left = 3;; --left) {
    attempt.Run(chunk_tokens);
    if (left == 0 || from->log.WaitEnded(attempt.ticket, false).status.ok()) break;
    to->transport.Abort(attempt.ticket);
    to->log.WaitEnded(attempt.ticket, true);
    attempt = attempt.Again();
  }
  attempt.ExpectVerified();
}

RankedHandoff MakeRankedHandoff(RankedWorker* from, RankedWorker* to, TokenRange tokens,
                                int32_t index) {
  RankedHandoff h{.ticket = {0xABC0, 0x1000 + 8 * static_cast<uint64_t>(index)},
                  .from = from,
                  .to = to,
                  .first_token = tokens.first,
                  .num_tokens = tokens.first + tokens.count};
  h.from_blocks = BlocksFor(*from, h.num_tokens);
  h.to_blocks = BlocksFor(*to, h.num_tokens);
  for (auto& rank : from->ranks) rank->FillPattern(h.from_blocks, {0, h.num_tokens}, h.ticket.lo);
  for (auto& rank : to->ranks) rank->FillCanary(kCanary);
  return h;
}

}  // namespace baton
