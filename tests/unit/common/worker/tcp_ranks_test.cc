#include "common/worker/tcp_ranks.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/kv_cache/block_types.h"
#include "common/transport/pair_key.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kHeads = 2;
constexpr int32_t kDim = 8;
constexpr int32_t kBlockSize = 4;
constexpr int32_t kTokens = 12;
constexpr int32_t kBlocks = kTokens / kBlockSize;

KvLayout LayoutOf(int32_t heads) {
  return {.block_size = kBlockSize,
          .groups = {{.num_layers = 1, .num_kv_heads = heads, .k_dim = kDim, .v_dim = kDim}}};
}

// A worker's pools, one for each rank, and their transport.
class Worker {
 public:
  Worker(Incarnation incarnation, int32_t size) : incarnation_(incarnation) {
    TcpRanksOptions options{.kv_heads = kHeads};
    options.sink = [this](TransferEvent event) {
      absl::MutexLock lock(&mutex_);
      if (event.kind == TransferEvent::Kind::kEnded) ended_.push_back(event);
    };
    options.tcp.transport.secret.fill(7);
    options.tcp.transport.incarnation = incarnation;
    options.tcp.transport.epochs = &epochs_;
    for (int32_t r = 0; r < size; ++r) {
      heads_.push_back(HeadsOf(r, size, kHeads));
      pools_.push_back(*KvCache::Create(LayoutOf(heads_[r].count), kBlocks));
      options.ranks.push_back({.cache = pools_[r].get()});
    }
    transport_ = *TcpRanks::Create(std::move(options));
  }

  std::vector<DataRank> DataRanks() const {
    std::vector<DataRank> ranks;
    const std::vector<std::string> endpoints = transport_->endpoints();
    for (size_t r = 0; r < heads_.size(); ++r) ranks.push_back({endpoints[r], heads_[r]});
    return ranks;
  }

  // Bytes that tell plane, block and head of the model.
  void Fill() {
    ForEachHeadBlock([](std::span<std::byte> bytes, uint8_t tag) {
      std::ranges::fill(bytes, std::byte{tag});
    });
  }
  void ExpectFilled() {
    ForEachHeadBlock([](std::span<std::byte> bytes, uint8_t tag) {
      EXPECT_EQ(std::ranges::count(bytes, std::byte{tag}), std::ssize(bytes));
    });
  }

  TransferEvent AwaitEnd() {
    absl::MutexLock lock(&mutex_);
    const auto has_ended = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !ended_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&has_ended), absl::Seconds(30))) return {};
    return ended_[0];
  }

  Incarnation incarnation() const { return incarnation_; }
  TcpRanks& transport() { return *transport_; }

 private:
  template <typename Visit>
  void ForEachHeadBlock(Visit visit) {
    for (size_t r = 0; r < pools_.size(); ++r) {
      for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
        for (int32_t block = 0; block < kBlocks; ++block) {
          for (int32_t h = 0; h < heads_[r].count; ++h) {
            const int head = heads_[r].first + h;
            const int tag = 1 + block + 10 * head + 100 * static_cast<int>(plane);
            visit(pools_[r]->HeadBlock(0, plane, block, h), static_cast<uint8_t>(tag));
          }
        }
      }
    }
  }

  const Incarnation incarnation_;
  BlockEpochs epochs_ = BlockEpochs(kBlocks);
  std::vector<HeadRange> heads_;
  std::vector<std::unique_ptr<KvCache>> pools_;
  absl::Mutex mutex_;
  std::vector<TransferEvent> ended_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<TcpRanks> transport_;  // Last: its threads use all of the above.
};

void HandOver(Worker& from, Worker& to) {
  TransportSecret secret;
  secret.fill(7);
  const TicketId ticket = LegOf({.hi = 5, .lo = 8}, 0);
  to.transport().Expect({.ticket = ticket,
                         .sender = from.incarnation(),
                         .blocks = {{0, 0}, {1, 0}, {2, 0}},
                         .num_tokens = kTokens,
                         .digests = {1, 2, 3}});
  from.transport().Start({.ticket = ticket,
                          .receivers = to.DataRanks(),
                          .key = DerivePairKey(secret, from.incarnation(), to.incarnation()),
                          .sender = from.incarnation(),
                          .receiver = to.incarnation(),
                          .blocks = {0, 1, 2},
                          .num_tokens = kTokens});
  from.transport().Push({.ticket = ticket, .num_tokens = kTokens});
  from.transport().Finish({.ticket = ticket, .digests = {1, 2, 3}});
}

TEST(TcpRanksTest, HandsOverBetweenAnyNumbersOfRanks) {
  for (const int32_t from_size : {1, 2, 4}) {
    for (const int32_t to_size : {1, 2, 4}) {
      SCOPED_TRACE(absl::StrCat(from_size, " to ", to_size));
      Worker from(1, from_size), to(2, to_size);
      EXPECT_EQ(to.DataRanks().size(), static_cast<size_t>(to_size));
      from.Fill();
      HandOver(from, to);
      const TransferEvent received = to.AwaitEnd();
      EXPECT_TRUE(received.receiver);
      EXPECT_TRUE(received.status.ok()) << received.status;
      const TransferEvent sent = from.AwaitEnd();
      EXPECT_TRUE(sent.status.ok()) << sent.status;
      to.ExpectFilled();
      // K and V in f32 of each head once for each rank that holds it.
      const int64_t bytes = int64_t{2} * 4 * kTokens * kDim * std::max(to_size, kHeads);
      EXPECT_EQ(received.bytes, bytes);
      EXPECT_EQ(from.transport().counters().bytes_sent, bytes);
      EXPECT_EQ(to.transport().counters().bytes_accepted, bytes);
    }
  }
}

// A thread in the sink, if it is a rank's beyond the first.
class HeldSink {
 public:
  void Take() {
    char name[16] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    absl::MutexLock lock(&mutex_);
    ++num_taken_;
    if (std::string_view(name) != "transport-rank") return;
    holds_ = true;
    mutex_.Await(absl::Condition(&released_));
  }
  // Whether the event after so many is held, once it has come.
  bool HoldsAfter(int64_t num_taken) {
    absl::MutexLock lock(&mutex_);
    const auto came = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return num_taken_ > num_taken; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&came), absl::Minutes(1)));
    return holds_;
  }
  void Release() {
    absl::MutexLock lock(&mutex_);
    released_ = true;
  }

 private:
  absl::Mutex mutex_;
  int64_t num_taken_ ABSL_GUARDED_BY(mutex_) = 0;
  bool holds_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
};

bool Listens(const std::string& endpoint) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const int port = std::stoi(endpoint.substr(endpoint.rfind(':') + 1));
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool listens = ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  ::close(fd);
  return listens;
}

// What was called holds on to ranks that it has still to tell.
TEST(TcpRanksTest, NoRankEndsBeforeTheReportUnderWay) {
  BlockEpochs epochs(kBlocks);
  std::vector<std::unique_ptr<KvCache>> pools;
  HeldSink sink;
  TcpRanksOptions options{.kv_heads = kHeads, .sink = [&](TransferEvent) { sink.Take(); }};
  options.tcp.transport.secret.fill(7);
  options.tcp.transport.incarnation = 2;
  options.tcp.transport.epochs = &epochs;
  for (int r = 0; r < 2; ++r) {
    pools.push_back(*KvCache::Create(LayoutOf(1), kBlocks));
    options.ranks.push_back({.cache = pools[r].get()});
  }
  std::unique_ptr<TcpRanks> transport = *TcpRanks::Create(std::move(options));
  const std::string first_rank = transport->endpoints()[0];
  // Whose leg ends last tells of the end.
  for (uint64_t i = 0;; ++i) {
    const TicketId ticket = {.hi = 5, .lo = 8 * (i + 1)};
    transport->Expect({.ticket = ticket, .sender = 1, .blocks = {{0, 0}}, .num_tokens = 1});
    EXPECT_THAT(transport->OpenLegs(), ElementsAre(OpenLeg{ticket, 0}, OpenLeg{ticket, 1}));
    transport->Abort(ticket);
    if (sink.HoldsAfter(static_cast<int64_t>(i))) break;
  }
  std::jthread ending([&] { transport.reset(); });
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(Listens(first_rank));
    absl::SleepFor(absl::Milliseconds(2));
  }
  sink.Release();
  ending.join();
  EXPECT_FALSE(Listens(first_rank));
}

TEST(TcpRanksTest, APortThatIsTakenIsNamed) {
  Worker holder(1, 1);
  const std::string endpoint = holder.transport().endpoints()[0];
  const int port = std::stoi(endpoint.substr(endpoint.rfind(':') + 1));
  BlockEpochs epochs(kBlocks);
  const auto pool = *KvCache::Create(LayoutOf(kHeads), kBlocks);
  TcpRanksOptions options{.kv_heads = kHeads, .sink = [](TransferEvent) {}};
  options.tcp.transport.secret.fill(7);
  options.tcp.transport.incarnation = 2;
  options.tcp.transport.epochs = &epochs;
  options.ranks.push_back({.cache = pool.get(), .port = port});
  EXPECT_THAT(std::string(TcpRanks::Create(std::move(options)).status().message()),
              HasSubstr(absl::StrCat("--data-port ", port, ": ")));
}

}  // namespace
}  // namespace baton
