#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/cluster.grpc.pb.h"
#include "baton/v1/decode.grpc.pb.h"
#include "baton/v1/prefill.grpc.pb.h"
#include "baton/v1/session.grpc.pb.h"
#include "common/node/inbox.h"
#include "common/node/router_mail.h"
#include "common/rpc/cluster_tls.h"
#include "common/rpc/hello_backoff.h"
#include "common/rpc/retired_channels.h"
#include "common/rpc/sampling_wire.h"
#include "common/rpc/session_client.h"
#include "common/rpc/silence.h"
#include "common/rpc/worker_links.h"

namespace baton {

inline constexpr int kMostStatuses = 2000;  // Between two sweeps; a worker says 20 a second.

// What goes over one connection to a worker.
struct WorkerStubs {
  WorkerStubs(const WorkerAddress& address, const ClusterTls* tls);

  const std::shared_ptr<const TlsIdentity> identity;  // At most a newer one was presented.
  const std::shared_ptr<HandshakeNote> note;          // Why this side ended a handshake.
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::Cluster::Stub> cluster;
  const std::unique_ptr<v1::Decode::Stub> decode;
  const std::unique_ptr<v1::Prefill::Stub> prefill;
  const std::unique_ptr<v1::Session::Stub> session;
};

// Keeps one worker connected: Hello, Watch, back-off, again, each time over a new connection, so
// that nothing of a damaged one lives on. One operation is in flight at any
// time (a Hello, a Watch or an alarm), so its steps need no ordering beyond the mutex. `on_idle` is
// called once, when Stop was called and no operation is left: only then may this be destroyed.
//
// When this side's certificates change, the connection is renewed, so that none is older than what
// either side presents and trusts: the Watch ends, Hello goes over a second connection, and if the
// same process answers, Watch and new calls go over that one. Calls that run stay on the first,
// which is `expiring`: it ends with the last of them, or after `expiry_sweeps`, and what becomes of
// them then is ABORTED, which says nothing against the worker. If nobody answers, all goes on over
// the first connection and this is tried again; twice in vain, and its worker is trusted no more:
// the connection is lost.
class WorkerLink : public grpc::ClientReadReactor<v1::WorkerStatus>,
                   public std::enable_shared_from_this<WorkerLink> {
 public:
  struct Options {
    int32_t worker = 0;  // Index in the router's list.
    WorkerAddress address;
    const ClusterTls* tls = nullptr;
    RetiredChannels* retired = nullptr;
    int expiry_sweeps = 45;
    int most_statuses = kMostStatuses;
    // A session that is to be started with a worker that serves them; null: none any more.
    // `on_over` is its hook. Empty: each call goes for itself.
    std::function<std::shared_ptr<SessionClient>(const WireLimits& limits,
                                                 std::function<void(const std::string&)> on_over)>
        make_session;
    // The calls over these are to end.
    std::function<void(const WorkerStubs*)> on_lost;
    std::function<void()> on_idle;
  };

  WorkerLink(Options options, Inbox<RouterMail>* inbox);

  void Start();
  void Stop();

  // Who is connected now; incarnation 0 = nobody.
  struct Peer {
    Incarnation incarnation = 0;
    WireLimits limits;
    std::shared_ptr<const WorkerStubs> stubs;
    std::shared_ptr<SessionClient> session;  // Null: each call goes for itself.
  };
  Peer peer() const;

  // Calls may be open over these.
  bool Holds(const WorkerStubs* stubs) const;
  // They are not the ones that new calls go over.
  bool IsExpiring(const WorkerStubs* stubs) const;

  // Counts one more sweep without a status; after too many of them connects anew. Renews the
  // connection when it is due, and ends expiring ones.
  void Sweep();

  // Something that went over this connection was damaged or lost, or `why`: connects anew. A no-op
  // if it is not the current one.
  void Distrust(const WorkerStubs* stubs, const std::string& why = "");

  // Nobody is connected, nor was at any moment since `time`.
  bool IsSilentSince(Time time) const;

  // After on_idle: its connection goes to be closed, so that any thread may destroy this.
  void Retire();

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  struct Expiring {
    std::shared_ptr<const WorkerStubs> stubs;
    std::shared_ptr<SessionClient> session;
    int sweeps_left = 0;
  };

  // Marks an operation as in flight and makes its context; null when stopped: then on_idle was
  // called and nothing may follow.
  std::pair<const WorkerStubs*, grpc::ClientContext*> Begin();
  void SayHello();
  void OnHello(const grpc::Status& status);
  bool IsRenewing() const;
  void OnHelloOfNext(const grpc::Status& status);
  // Over these, if the worker serves sessions.
  std::shared_ptr<SessionClient> StartSession(const HelloInfo& hello,
                                              const std::shared_ptr<const WorkerStubs>& stubs);
  void OnSessionOver(const WorkerStubs* stubs, const std::string& why);
  // Sessions that calls may be open in.
  std::vector<std::shared_ptr<SessionClient>> Sessions() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Who has said hello over `next_`, if that is the worker of `stubs_`.
  absl::StatusOr<HelloInfo> TakeHelloOfNext(const grpc::Status& status) const;
  // Takes `next_` as the connection, with a session over it.
  void Switch(std::shared_ptr<SessionClient> session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RenewIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SweepExpiring();
  absl::Status CheckHello(const HelloInfo& hello) const;
  // Why nobody said hello, as far as this side can know.
  std::string WhyNoHello(const grpc::Status& status, const WorkerStubs& stubs) const;
  std::shared_ptr<const WorkerStubs> CurrentStubs() const;
  std::shared_ptr<const WorkerStubs> NextStubs() const;
  void StartWatch(Incarnation incarnation);
  // The operation in flight failed: mail WorkerDown and try again later, or stop. `is_gone`: nobody
  // listens there.
  void Retry(const std::string& failure, bool is_gone = false);
  // True if something good had come in its session.
  bool Disconnect(const std::string& failure, bool is_gone);
  // The worker is to break what these sessions still have open before it takes anything of a new
  // one.
  void NoteEnded(const std::vector<std::shared_ptr<SessionClient>>& sessions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Inbox<RouterMail>* const inbox_;

  mutable absl::Mutex mutex_;
  Peer peer_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const WorkerStubs> stubs_ ABSL_GUARDED_BY(mutex_);
  // Is to take over from stubs_; not null only while renewing.
  std::shared_ptr<const WorkerStubs> next_ ABSL_GUARDED_BY(mutex_);
  std::vector<Expiring> expiring_ ABSL_GUARDED_BY(mutex_);
  int failed_renewals_ ABSL_GUARDED_BY(mutex_) = 0;    // One after the other.
  int sweeps_to_renewal_ ABSL_GUARDED_BY(mutex_) = 0;  // Then.
  Time last_peer_ ABSL_GUARDED_BY(mutex_);  // Somebody was connected then; at first the start.
  bool distrusted_ ABSL_GUARDED_BY(mutex_) = false;
  std::string why_distrusted_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  std::string last_reason_ ABSL_GUARDED_BY(mutex_);
  HelloBackoff backoff_ ABSL_GUARDED_BY(mutex_);
  int num_statuses_ ABSL_GUARDED_BY(mutex_) = 0;  // Of this connection.
  int num_swept_ ABSL_GUARDED_BY(mutex_) = 0;     // Of those, before the last sweep.
  Silence silence_ ABSL_GUARDED_BY(mutex_);       // Since the last one.
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // An operation is in flight.
  bool probes_ ABSL_GUARDED_BY(mutex_) = false;  // Hello fails at once if nobody listens.
  std::deque<uint32_t> ended_keys_ ABSL_GUARDED_BY(mutex_);  // Of the last sessions that ended.

  // Of the operation in flight; the gRPC library's until it calls back.
  v1::HelloRequest hello_request_;
  v1::HelloResponse hello_response_;
  v1::WatchRequest watch_request_;
  v1::WorkerStatus status_;
  std::string bad_status_;  // Why the worker's status was not taken; ends the Watch.
};

}  // namespace baton
