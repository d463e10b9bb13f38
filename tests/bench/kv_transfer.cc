// K/V from one worker's transport to another's over TCP on this machine, in plaintext (behind the
// HMAC challenge) and under TLS: what a gigabyte costs the progress thread of each side, how fast
// it goes, and what of that the cipher and the checksum take where nothing else is done.
#include <dirent.h>
#include <openssl/evp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/transport/tcp/tcp_kv_transport.h"
#include "tests/bench/report.h"

namespace {

using baton::bench::Row;

constexpr int32_t kBlockSize = 16;
constexpr size_t kRecordBytes = 16 << 10;  // As under TLS.
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

double CpuSecondsOf(const std::string& thread) {
  std::ifstream file(thread + "/schedstat");
  double nanoseconds = 0;
  file >> nanoseconds;
  return nanoseconds * 1e-9;
}

// A transport with a pool, and its progress thread.
class Side {
 public:
  Side(baton::Incarnation incarnation, bool tls, int32_t num_blocks)
      : incarnation_(incarnation), num_blocks_(num_blocks), epochs_(num_blocks) {
    cache_ = *baton::KvCache::Create(kLayout, num_blocks);
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
  double CpuSeconds() const { return CpuSecondsOf("/proc/self/task/" + thread_); }

  // The bytes of the next ticket's end, which is good.
  int64_t AwaitEnd() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
    ended_ = false;
    return bytes_;
  }

  void Expect(baton::TicketId ticket, baton::Incarnation sender) {
    baton::ExpectArgs args{
        .ticket = ticket, .sender = sender, .num_tokens = num_blocks_ * kBlockSize};
    for (int32_t i = 0; i < num_blocks_; ++i) args.blocks.push_back({i, epochs_[i].load()});
    transport_->Expect(std::move(args));
  }

  void Send(baton::TicketId ticket, const Side& to) {
    baton::StartArgs args{.ticket = ticket,
                          .endpoint = to.transport_->endpoint(),
                          .key = baton::DerivePairKey(to.secret_, incarnation_, to.incarnation_),
                          .sender = incarnation_,
                          .receiver = to.incarnation_,
                          .num_tokens = num_blocks_ * kBlockSize};
    for (int32_t i = 0; i < num_blocks_; ++i) args.blocks.push_back(i);
    transport_->Start(std::move(args));
    for (int32_t layer = 0; layer < baton::NumLayers(kLayout); ++layer) {
      transport_->Push({ticket, layer, 0, num_blocks_ * kBlockSize});
    }
    transport_->Finish({.ticket = ticket, .first = {.position = num_blocks_ * kBlockSize}});
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
  const int32_t num_blocks_;
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

Cost Measure(bool tls, int32_t num_blocks, int handoffs) {
  Side sender(1, tls, num_blocks);
  Side receiver(2, tls, num_blocks);
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

// The median of each figure, of rounds in which both modes had their turn.
Cost MedianOf(std::vector<Cost> rounds) {
  Cost median;
  for (double Cost::* const figure : {&Cost::sender_s, &Cost::receiver_s, &Cost::wall_s}) {
    const auto middle = rounds.begin() + static_cast<ptrdiff_t>(rounds.size() / 2);
    std::ranges::nth_element(rounds, middle, {}, figure);
    median.*figure = (*middle).*figure;
  }
  return median;
}

// Core seconds of a gigabyte in this thread, of work on memory that a second-level cache holds.
template <typename Work>
double PerGigabyte(double gigabytes, const Work& work) {
  std::vector<unsigned char> memory(16 * kRecordBytes);
  const double begin = CpuSecondsOf("/proc/thread-self");
  double done = 0;
  while (done < gigabytes * 1e9) {
    for (size_t at = 0; at < memory.size(); at += kRecordBytes) work(&memory[at]);
    done += static_cast<double>(memory.size());
  }
  return (CpuSecondsOf("/proc/thread-self") - begin) / (done * 1e-9);
}

double CipherAlone(double gigabytes) {
  EVP_CIPHER_CTX* const cipher = EVP_CIPHER_CTX_new();
  const std::array<unsigned char, 16> key{};
  std::array<unsigned char, 16> tag;
  std::array<unsigned char, 12> nonce{};
  BATON_CHECK(EVP_EncryptInit_ex(cipher, EVP_aes_128_gcm(), nullptr, key.data(), nullptr) == 1);
  const double cost = PerGigabyte(gigabytes, [&](unsigned char* record) {
    int size = 0;
    ++nonce[0];
    BATON_CHECK(EVP_EncryptInit_ex(cipher, nullptr, nullptr, nullptr, nonce.data()) == 1 &&
                EVP_EncryptUpdate(cipher, record, &size, record, kRecordBytes) == 1 &&
                EVP_EncryptFinal_ex(cipher, record + size, &size) == 1 &&
                EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_GET_TAG, tag.size(), tag.data()) == 1);
  });
  EVP_CIPHER_CTX_free(cipher);
  return cost;
}

double ChecksumAlone(double gigabytes) {
  uint32_t sum = 0;
  const double cost = PerGigabyte(gigabytes, [&](const unsigned char* record) {
    sum = baton::ExtendCrc32c(sum, std::as_bytes(std::span(record, kRecordBytes)));
  });
  BATON_CHECK(sum != 0);
  return cost;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("K/V over TCP, plaintext beside TLS: processor time per gigabyte and side");
  int rounds = 5;
  int handoffs = 16;
  int tokens = 512;
  bool quick = false;
  bool json = false;
  app.add_option("--rounds", rounds, "Of both modes in turn, of which the medians are shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--handoffs", handoffs, "Of a round in each mode")->capture_default_str();
  app.add_option("--tokens", tokens, "Of a handoff, 64 KiB each")
      ->check(CLI::Range(kBlockSize, 16384))
      ->capture_default_str();
  app.add_flag("--quick", quick, "Seconds: a few handoffs");
  app.add_flag("--json", json, "For machines");
  CLI11_PARSE(app, argc, argv);
  if (quick) rounds = 1, handoffs = 4;
  const int32_t num_blocks = tokens / kBlockSize;
  std::vector<Cost> of_plain, of_tls;
  for (int i = 0; i < rounds; ++i) {
    of_plain.push_back(Measure(/*tls=*/false, num_blocks, handoffs));
    of_tls.push_back(Measure(/*tls=*/true, num_blocks, handoffs));
  }
  const Cost plain = MedianOf(std::move(of_plain));
  const Cost tls = MedianOf(std::move(of_tls));
  const double gigabytes = quick ? 0.1 : 2;
  const std::string unit = "core s/GB";
  const std::vector<Row> rows = {
      {.name = "plaintext, sender", .value = plain.sender_s, .unit = unit},
      {.name = "plaintext, receiver", .value = plain.receiver_s, .unit = unit},
      {.name = "plaintext, throughput", .value = 1 / plain.wall_s, .unit = "GB/s"},
      {.name = "TLS, sender", .value = tls.sender_s, .unit = unit},
      {.name = "TLS, receiver", .value = tls.receiver_s, .unit = unit},
      {.name = "TLS, throughput",
       .value = 1 / tls.wall_s,
       .unit = "GB/s",
       .roof = 1 / plain.wall_s,
       .roof_name = "plaintext"},
      {.name = "AES-128-GCM alone", .value = CipherAlone(gigabytes), .unit = unit},
      {.name = "CRC-32C alone", .value = ChecksumAlone(gigabytes), .unit = unit}};
  baton::bench::Print("kv_transfer", "one connection on loopback; goal 0.3 core s/GB and side",
                      rows, json);
  return 0;
}
