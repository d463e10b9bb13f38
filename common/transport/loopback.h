#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "common/transport/kv_transport.h"
#include "common/transport/receive_ledger.h"
#include "common/transport/transport_counters.h"
#include "common/transport/transport_options.h"

namespace baton {

class LoopbackKvTransport;

// Where loopback transports find each other by endpoint name. Thread-safe; one lock for all of them
// makes a copy and the ending of its ticket exclude each other.
class LoopbackHub {
 public:
  LoopbackHub() = default;
  LoopbackHub(const LoopbackHub&) = delete;
  LoopbackHub& operator=(const LoopbackHub&) = delete;

 private:
  friend class LoopbackKvTransport;
  struct Mail {
    LoopbackKvTransport* to = nullptr;
    TransferEvent event;
  };

  // Delivers queued mail in order, without the lock; another thread that is delivering already does
  // it instead.
  void Deliver(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable delivered_;
  std::map<std::string, LoopbackKvTransport*> endpoints_;
  std::deque<Mail> mail_;
  LoopbackKvTransport* delivering_to_ = nullptr;
  bool delivering_ = false;
};

// KvTransport within one process: a push copies at once, by the same plan, the same checks and the
// same ledger as the socket transport. The sink is called within one of the methods, of this or of
// another endpoint, on that caller's thread; it may call transports again but must not destroy one.
class LoopbackKvTransport : public KvTransport {
 public:
  // `endpoint` is this transport's name at the hub; ALREADY_EXISTS when it is taken.
  static absl::StatusOr<std::unique_ptr<LoopbackKvTransport>> Create(
      std::shared_ptr<LoopbackHub> hub, std::string endpoint, TransportOptions options);

  // Ends all tickets with CANCELLED, as the loss of a connection for the peers. After it the sink
  // is not called.
  ~LoopbackKvTransport() override;

  void Expect(ExpectArgs args) override;
  void Start(StartArgs args) override;
  void Push(PushArgs args) override;
  void Finish(FinishArgs args) override;
  void Abort(TicketId ticket) override;

  const std::string& endpoint() const { return endpoint_; }
  TransportCounters counters() const { return counters_.Read(); }

 private:
  friend class LoopbackHub;
  struct Outgoing {
    StartArgs args;
    LoopbackKvTransport* peer = nullptr;
    int64_t bytes = 0;
  };
  using OutgoingMap = std::map<TicketId, Outgoing>;

  LoopbackKvTransport(std::shared_ptr<LoopbackHub> hub, std::string endpoint,
                      TransportOptions options);
  ReceiveLedger::Sender self() const { return {options_.incarnation, options_.place}; }
  // The ledger's. The senders hear of an end when the call that led to it is done.
  void OnTicketEvent(TransferEvent event);
  void TellSenders();
  // Runs `call` under the hub's lock and delivers what came of it.
  void Locked(const std::function<void()>& call);
  absl::StatusOr<LoopbackKvTransport*> FindPeer(const StartArgs& args) const;
  void PushLocked(const PushArgs& args);
  void FinishLocked(const FinishArgs& args);
  AbortCode SendFrame(Outgoing* outgoing, const FrameRange& range);
  void EndOutgoing(OutgoingMap::iterator it, absl::Status status);
  void Post(TransferEvent event);

  const std::shared_ptr<LoopbackHub> hub_;
  const std::string endpoint_;
  const TransportOptions options_;
  CounterBoard counters_;
  ReceiveLedger ledger_;
  OutgoingMap outgoing_;
  std::map<TicketId, bool> ended_;  // Here, and whether verified; the senders are to be told.
};

}  // namespace baton
