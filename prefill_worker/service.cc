#include "prefill_worker/service.h"

#include <utility>

#include "common/base/status.h"

namespace baton {

absl::StatusOr<std::unique_ptr<PrefillService>> PrefillService::Start(const PrefillConfig& config) {
  RETURN_IF_ERROR(config.Validate());
  ASSIGN_OR_RETURN(std::unique_ptr<WorkerRuntime> made,
                   WorkerRuntime::Create(config.worker, Role::kPrefill));
  std::unique_ptr<PrefillService> service(new PrefillService(std::move(made)));
  const WorkerRuntime::NodeParts parts = service->runtime_->parts();
  EngineOptions engine = parts.engine;
  engine.finish_together = config.finish_together;
  service->node_ = std::make_unique<PrefillNode>(
      PrefillNodeOptions{
          .incarnation = parts.incarnation, .engine = engine, .max_waiting = config.max_waiting},
      parts.model, parts.allocator, parts.runner, parts.transport, parts.outbox);
  const PrefillNode* node = service->node_.get();
  const auto read = [node] {
    const PrefillCounters& counters = node->counters();
    return WorkerSnapshot{.status = node->Status(),
                          .idle = node->idle(),
                          .calls = counters.calls,
                          .refused = counters.refused,
                          .prompt_tokens = counters.prompt_tokens,
                          .cached_tokens = counters.cached_tokens,
                          .counters = {{"duplicate_calls", counters.duplicates},
                                       {"stale_mail", counters.stale_mail},
                                       {"sends", counters.sends},
                                       {"kept_expired", counters.kept_expired},
                                       {"handoffs", counters.handoffs},
                                       {"handoffs_failed", counters.handoffs_failed}}};
  };
  RETURN_IF_ERROR(service->runtime_->Serve(service->node_.get(), read));
  return service;
}

// The node's thread ends before the node does.
PrefillService::~PrefillService() { runtime_->Stop(); }

}  // namespace baton
