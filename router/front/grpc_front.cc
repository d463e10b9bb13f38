#include "router/front/grpc_front.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/this_thread.h"
#include "common/http/listener.h"
#include "router/front/relay.h"

namespace baton {
namespace {

using boost::asio::ip::tcp;

// More wait in the kernel's queue, where no time limit runs.
constexpr size_t kMostHandshakeSteps = 128;

class Front : public GrpcFront {
 public:
  explicit Front(GrpcFrontOptions options)
      : core_(std::move(options)),
        listener_(core_.io, {.take = [this](tcp::socket socket) { Take(std::move(socket)); },
                             .make_room = [this] { return MakeRoom(nullptr); },
                             .is_behind = [this] { return IsBehind(); }}),
        work_(boost::asio::make_work_guard(core_.io)) {}

  ~Front() override { Stop(); }

  absl::Status Bind() { return listener_.Bind(core_.options.host, core_.options.port); }

  void Start() override {
    boost::asio::post(core_.io, [this] { listener_.Accept(); });
    thread_ = std::thread([this] {
      NameThisThread("grpc-io");
      Run();
    });
  }

  uint16_t port() const override { return listener_.port(); }
  int64_t num_connections() const override { return core_.num_connections; }
  int64_t num_paced() const override { return core_.paced.count; }
  int64_t num_calmed() const override { return core_.calmed.count; }

  void Drain() override {
    if (!thread_.joinable()) return;
    absl::Notification is_done;
    boost::asio::post(core_.io, [this, &is_done] {
      listener_.Close();
      core_.is_closed = true;
      is_done.Notify();
    });
    is_done.WaitForNotification();
  }

  void Stop() override {
    if (!thread_.joinable()) return;
    Drain();
    boost::asio::post(core_.io, [this] {
      for (const std::shared_ptr<Relay>& relay : Relays()) relay->Finish();
    });
    work_.reset();
    thread_.join();
  }

 private:
  // A library's exception ends one task, not the front.
  void Run() {
    for (bool has_thrown = true; has_thrown;) {
      has_thrown = false;
      try {
        core_.io.run();
      } catch (const std::exception&) {
        has_thrown = true;
      }
    }
  }

  std::vector<std::shared_ptr<Relay>> Relays() const {
    std::vector<std::shared_ptr<Relay>> relays;
    for (const auto& [id, weak] : core_.relays) {
      if (auto relay = weak.lock()) relays.push_back(std::move(relay));
    }
    return relays;
  }

  bool IsBehind() const { return core_.handshakes.num_waiting() >= kMostHandshakeSteps; }

  // One goes of the address that has most, so that none shuts the port for others: one that is
  // idle, rather one that has not begun; or any for a newcomer whose address has fewer.
  bool MakeRoom(const Relay* newcomer) {
    int most = 0;
    for (const auto& [network, count] : core_.num_of_network) most = std::max(most, count);
    const bool may_cut = newcomer != nullptr && core_.num_of_network.at(newcomer->network()) < most;
    const auto rank = [](const Relay& r) {
      return std::tuple(!r.is_idle(), r.has_begun(), r.last_active());
    };
    std::shared_ptr<Relay> quietest;
    for (const std::shared_ptr<Relay>& relay : Relays()) {
      if (relay.get() == newcomer || core_.num_of_network.at(relay->network()) < most) continue;
      if (!relay->is_idle() && !may_cut) continue;
      if (quietest == nullptr || rank(*relay) < rank(*quietest)) quietest = relay;
    }
    if (quietest != nullptr) quietest->Close();
    return quietest != nullptr;
  }

  void Take(tcp::socket socket) {
    if (core_.is_closed) return;
    const auto relay = std::make_shared<Relay>(core_, std::move(socket));
    core_.relays[relay->id()] = relay;
    const bool is_full = core_.num_connections > core_.options.max_connections;
    if (is_full && !MakeRoom(relay.get())) return relay->Close();
    relay->Start();
  }

  FrontCore core_;
  http::Listener listener_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcFront>> GrpcFront::Create(GrpcFrontOptions options) {
  const uint16_t port = options.port;
  auto front = std::make_unique<Front>(std::move(options));
  const absl::Status status = front->Bind();
  if (absl::IsInvalidArgument(status)) {
    return absl::InvalidArgumentError(absl::StrCat("gRPC ", status.message()));
  }
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat("--grpc-port ", port, ": ", status.message(),
                                                    "; choose a free port, or 0 for any"));
  }
  return std::unique_ptr<GrpcFront>(std::move(front));
}

}  // namespace baton
