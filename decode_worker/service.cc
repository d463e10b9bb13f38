#include "decode_worker/service.h"

#include <utility>

#include "common/base/status.h"
#include "common/process/identity.h"

namespace baton {

absl::StatusOr<std::unique_ptr<DecodeService>> DecodeService::Start(const DecodeConfig& config) {
  RETURN_IF_ERROR(config.Validate());
  ASSIGN_OR_RETURN(std::unique_ptr<WorkerRuntime> made,
                   WorkerRuntime::Create(config.worker, Role::kDecode));
  std::unique_ptr<DecodeService> service(new DecodeService(std::move(made)));
  WorkerRuntime* runtime = service->runtime_.get();
  const WorkerRuntime::NodeParts parts = runtime->parts();
  service->node_ = std::make_unique<DecodeNode>(
      DecodeNodeOptions{.incarnation = parts.incarnation,
                        .data_endpoint = parts.data_endpoint,
                        .engine = parts.engine},
      DecodeIdentity{.new_ticket = NewTicket,
                     .key_of = [runtime](Incarnation prefill) { return runtime->KeyOf(prefill); }},
      parts.model, parts.allocator, parts.runner, parts.transport, parts.outbox);
  const DecodeNode* node = service->node_.get();
  const auto read = [node] {
    const DecodeCounters& counters = node->counters();
    return WorkerSnapshot{.status = node->Status(),
                          .idle = node->idle(),
                          .calls = counters.calls,
                          .refused = counters.refused,
                          .prompt_tokens = counters.prompt_tokens,
                          .cached_tokens = counters.cached_tokens,
                          .preemptions = node->num_preemptions(),
                          .counters = {{"duplicate_calls", counters.duplicates},
                                       {"stale_mail", counters.stale_mail},
                                       {"revoked_reservations", counters.revoked},
                                       {"swapped_sequences", node->num_swaps()},
                                       {"rebinds", counters.rebinds},
                                       {"self_prefills", counters.computed_here},
                                       {"unbound_expired", counters.unbound_expired},
                                       {"handoffs", counters.handoffs},
                                       {"handoffs_failed", counters.handoffs_failed}}};
  };
  RETURN_IF_ERROR(service->runtime_->Serve(service->node_.get(), read));
  return service;
}

// The node's thread ends before the node does.
DecodeService::~DecodeService() { runtime_->Stop(); }

}  // namespace baton
