// K/V from one worker's transport to another's over TCP on this machine, in plaintext and under
// TLS: what a gigabyte costs the progress thread of each side, and how fast it goes.
#include <dirent.h>

#include <CLI/CLI.hpp>
#include <array>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/transport/tcp/tcp_kv_transport.h"
#include "tests/bench/report.h"

namespace {

using baton::bench::Row;

constexpr int32_t kBlockSize = 16;
constexpr int32_t kBlocks = 32;  // 512 tokens of 64 KiB.
// As an 8B model's, but for the number of layers.
const baton::KvLayout kLayout{.block_size = kBlockSize,
                              .groups = {{.num_layers = 16,
                                          .num_kv_heads = 8,
                                          .k_dim = 128,
                                          .v_dim = 128,
                                          .dtype = baton::DType::kBF16}}};

std::set<std::string> Threads() {
  std::set<std::string> ids;
  DIR* const tasks = opendir("/proc/self/task");
  BATON_CHECK(tasks != nullptr);
  while (const dirent* one = readdir(tasks)) {
    if (one->d_name[0] != '.') ids.insert(one->d_name);
  }
  closedir(tasks);
  return ids;
}

// A transport with a pool, and its progress thread.
class Side {
 public:
  Side(baton::Incarnation incarnation, bool tls)
      : incarnation_(incarnation), epochs_(kBlocks) {
    cache_ = *baton::KvCache::Create(kLayout, kBlocks);
    secret_.fill(static_cast<uint8_t>(incarnation));
    const std::set<std::string> before = Threads();
    const auto options = std::make_unique<baton::TcpOptions>();
    options->transport.secret = secret_;
    options->transport.incarnation = incarnation;
    options->transport.cache = cache_.get();
    options->transport.epochs = &epochs_;
    options->transport.sink = [this](baton::TransferEvent event) { Take(event); };
    options->tls = tls;
    transport_ = *baton::TcpKvTransport::Create(std::move(*options));
    for (const std::string& id : Threads()) {
      if (!before.contains(id)) thread_ = id;
    }
    BATON_CHECK(!thread_.empty());
  }

  // Of the progress thread, so far.
  double CpuSeconds() const {
    std::ifstream file("/proc/self/task/" + thread_ + "/schedstat");
    double nanoseconds = 0;
    file >> nanoseconds;
    return nanoseconds * 1e-9;
  }

  // The bytes of the next ticket's end, which is good.
  int64_t AwaitEnd() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    ended_ = false;
    return bytes_;
  }

  void Expect(baton::TicketId ticket, baton::Incarnation sender) {
    baton::ExpectArgs args{
        .ticket = ticket, .sender = sender, .num_tokens = kBlocks * kBlockSize};
    for (int32_t i = 0; i < kBlocks; ++i) args.blocks.push_back({i, epochs_[i].load()});
    transport_->Expect(std::move(args));
  }

  void Send(baton::TicketId ticket, const Side& to) {
    baton::StartArgs args{
        .ticket = ticket,
        .endpoint = to.transport_->endpoint(),
        .key = baton::DerivePairKey(to.secret_, incarnation_, to.incarnation_),
        .sender = incarnation_,
        .receiver = to.incarnation_,
        .num_tokens = kBlocks * kBlockSize};
    for (int32_t i = 0; i < kBlocks; ++i) args.blocks.push_back(i);
    transport_->Start(std::move(args));
    for (int32_t layer = 0; layer < baton::NumLayers(kLayout); ++layer) {
      transport_->Push({ticket, layer, 0, kBlocks * kBlockSize});
    }
    transport_->Finish({.ticket = ticket, .first = {.position = kBlocks * kBlockSize}});
  }

 private:
  void Take(const baton::TransferEvent& event) {
    if (event.kind != baton::TransferEvent::Kind::kEnded) return;
    BATON_CHECK(event.status.ok());
    const std::lock_guard lock(mutex_);
    ended_ = true;
    bytes_ = event.bytes;
    changed_.notify_all();
  }

  const baton::Incarnation incarnation_;
  baton::BlockEpochs epochs_;
  baton::TransportSecret secret_{};
  std::unique_ptr<baton::KvCache> cache_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  int64_t bytes_ = 0;
  std::string thread_;
  std::unique_ptr<baton::TcpKvTransport> transport_;  // Last: its thread uses the rest.
};

// What one mode came to, of one gigabyte (1e9 bytes).
struct Cost {
  double sender_s = 0;
  double receiver_s = 0;
  double wall_s = 0;
};

Cost Measure(bool tls, int handoffs) {
  Side sender(1, tls);
  Side receiver(2, tls);
  const auto handoff = [&](uint64_t number) {
    const baton::TicketId ticket{.hi = number, .lo = 0};
    receiver.Expect(ticket, 1);
    sender.Send(ticket, receiver);
    sender.AwaitEnd();
    return receiver.AwaitEnd();
  };
  handoff(1);  // The connection, and the first touch of the pools.
  const double sent = sender.CpuSeconds();
  const double received = receiver.CpuSeconds();
  const baton::Time begin = baton::SteadyNow();
  double bytes = 0;
  for (int i = 0; i < handoffs; ++i) bytes += static_cast<double>(handoff(2 + i));
  const double gigabytes = bytes * 1e-9;
  return {.sender_s = (sender.CpuSeconds() - sent) / gigabytes,
          .receiver_s = (receiver.CpuSeconds() - received) / gigabytes,
          .wall_s = baton::ToSeconds(baton::SteadyNow() - begin) / gigabytes};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("K/V over TCP, plaintext beside TLS: processor time per gigabyte and side");
  int handoffs = 64;
  bool quick = false;
  bool json = false;
  app.add_option("--handoffs", handoffs, "Of 33.6 MB each, in each mode")->capture_default_str();
  app.add_flag("--quick", quick, "Seconds: a few handoffs");
  app.add_flag("--json", json, "For machines");
  CLI11_PARSE(app, argc, argv);
  if (quick) handoffs = 4;
  const Cost plain = Measure(/*tls=*/false, handoffs);
  const Cost tls = Measure(/*tls=*/true, handoffs);
  const std::string unit = "core s/GB";
  const std::vector<Row> rows = {
      {.name = "plaintext, sender", .value = plain.sender_s, .unit = unit},
      {.name = "plaintext, receiver", .value = plain.receiver_s, .unit = unit},
      {.name = "plaintext, throughput", .value = 1 / plain.wall_s, .unit = "GB/s"},
      {.name = "TLS, sender", .value = tls.sender_s, .unit = unit},
      {.name = "TLS, receiver", .value = tls.receiver_s, .unit = unit},
      {.name = "TLS, throughput", .value = 1 / tls.wall_s, .unit = "GB/s",
       .roof = 1 / plain.wall_s, .roof_name = "plaintext"}};
  baton::bench::Print("kv_transfer", "one connection on loopback; goal 0.3 core s/GB and side",
                      rows, json);
  return 0;
}
