#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"
#include "common/engine/worker_node.h"
#include "common/http/http_server.h"
#include "common/kv_cache/block_allocator.h"
#include "common/model/load_model.h"
#include "common/node/node.h"
#include "common/node/node_thread.h"
#include "common/node/worker_mail.h"
#include "common/rpc/cluster_tls.h"
#include "common/rpc/worker_server.h"
#include "common/telemetry/metrics.h"
#include "common/transport/kv_transport.h"
#include "common/transport/pair_key.h"
#include "common/worker/mailing_runner.h"
#include "common/worker/mailing_transport.h"
#include "common/worker/nccl_carriers.h"
#include "common/worker/worker_config.h"
#include "kernels/make_device.h"

namespace baton {

// What a worker's node shows of itself after each step.
struct WorkerSnapshot {
  WorkerStatus status;
  bool idle = true;  // No call is live and no block is held.
  bool stands_still = false;  // A step will not end: the process is not alive.
  WorkerCounters counted;
  int64_t preemptions = 0;
  // What its kind alone counts, by name without prefix and suffix: "rebinds" is
  // baton_rebinds_total.
  std::vector<std::pair<const char*, int64_t>> own;
};

// A node of either kind.
using WorkerNodePtr = std::variant<Node<DecodeMail>*, Node<PrefillMail>*>;

// Everything of a worker process but its node: the loaded model on its compute thread, the block
// pool, the transport, the gRPC server, metrics, and the thread that drives the node. Made bottom
// up by Create; Serve puts the node in.
class WorkerRuntime {
 public:
  // Loads the model, makes the pool, listens for KV transfers. The error names option and cure.
  static absl::StatusOr<std::unique_ptr<WorkerRuntime>> Create(const WorkerConfig& config,
                                                               Role role);
  ~WorkerRuntime();  // Stops at once.

  // For the node's constructor. All of it lives as long as this.
  WorkerParts parts();
  // Where prefill workers connect to a decode worker.
  std::vector<DataRank> DataRanks() const;

  // Whether steps are computed by the CPU's own cores.
  bool on_cpu() const { return processors_[0].device->info().unified; }

  // The key of the pair (`prefill`, this process).
  PairKey KeyOf(Incarnation prefill) const;

  // Drives `node`, opens the gRPC and metrics ports, writes the ready file. `read` is called after
  // each step, on the node's thread. The node outlives Stop; after an error all is stopped.
  absl::Status Serve(WorkerNodePtr node, std::function<WorkerSnapshot()> read);

  // Takes nothing new, waits for what runs until the configured limit or until `hurry` says so,
  // then Stop.
  void Drain(const std::function<bool()>& hurry);

  // Breaks all calls, ends the transfers, joins the node's thread. Idempotent.
  void Stop();

 private:
  using WorkerThread = std::variant<NodeThread<DecodeMail>, NodeThread<PrefillMail>>;

  WorkerRuntime(const WorkerConfig& config, Role role);
  NodeThreadOptions ThreadOptions() const;
  absl::Status Load();
  absl::StatusOr<DType> ComputeDType(DType weights) const;
  absl::Status MakeProcessors(int32_t threads);
  absl::Status Listen();
  absl::Status Begin(WorkerNodePtr node, std::function<WorkerSnapshot()> read);
  absl::Status ServeOps();
  Duration InTurnFor() const;
  // Why the process is not alive any more; empty: it is.
  std::string StandsStill() const;
  void ExportMetrics();
  void ExportOwn();
  static const char* HelpOf(std::string_view counter);
  HelloInfo Hello(const NcclHere& nccl) const;
  WorkerSnapshot snapshot() const;

  const WorkerConfig config_;
  const Role role_;
  const Incarnation incarnation_;
  std::unique_ptr<ClusterTls> tls_;  // Null: plaintext, on loopback.
  TransportSecret secret_{};
  Metrics metrics_;
  WorkerThread thread_;
  const WorkerInbox inbox_;  // Of the thread.
  mutable absl::Mutex mutex_;
  WorkerSnapshot snapshot_ ABSL_GUARDED_BY(mutex_);

  // Bottom up: each uses those before it. The transport touches the model's pool, and the model is
  // the device's.
  MailingRunner mailing_runner_;
  std::vector<Processors> processors_;  // Of each rank.
  LoadedModel model_;
  std::unique_ptr<BlockAllocator> allocator_;
  MailingTransport transport_;
  std::vector<std::string> data_endpoints_;  // Of each rank.
  std::unique_ptr<WorkerServer> server_;
  std::unique_ptr<http::HttpServer> ops_server_;
};

}  // namespace baton
