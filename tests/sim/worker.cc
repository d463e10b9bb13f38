#include "tests/sim/worker.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::sim {

void Cluster::Worker::Start(Options options) {
  options_ = std::move(options);
  incarnation_ = options_.incarnation;
  process_ = std::make_unique<Process>();
  Process& p = *process_;
  p.model = {
      .numerics_id = "sim",
      .layout = {.block_size = options_.block_size,
                 .groups = {{.num_layers = kLayers, .num_kv_heads = 1, .k_dim = 8, .v_dim = 8}}},
      .model_digest = 42,
      .vocab_size = kVocab,
      .max_model_len = 64,
      .eos_token_ids = {kEos}};
  p.allocator = std::make_unique<BlockAllocator>(options_.num_blocks, options_.block_size, 7);
  p.memory = std::make_unique<TagMemory>(*p.allocator, options_.violation);
  // Results and transfer events arrive as mail of their own event.
  p.runner = std::make_unique<FakeRunner>(*options_.world, *p.memory, *options_.faults,
                                          [this](Message m) { Deliver(std::move(m)); });
  p.port = std::make_unique<FabricPort>(*options_.fabric, incarnation_, *p.memory,
                                        p.allocator->generations(),
                                        [this](TransferEvent event) { Deliver(std::move(event)); });
  const EngineOptions engine{.chunk_tokens = options_.chunk_tokens, .max_batch_sequences = 8};
  if (role_ == Role::kPrefill) {
    p.prefill = std::make_unique<PrefillNode>(
        PrefillNodeOptions{.incarnation = incarnation_, .engine = engine, .max_waiting = 8},
        p.model, *p.allocator, *p.runner, *p.port, static_cast<WorkerOutbox&>(*this));
  } else {
    DecodeIdentity identity{.new_ticket =
                                [this] {
                                  return TicketId{incarnation_, options_.world->random.Next()};
                                },
                            .key_of = [](Incarnation) { return PairKey{}; }};
    p.decode = std::make_unique<DecodeNode>(
        DecodeNodeOptions{.incarnation = incarnation_, .data_endpoint = "sim", .engine = engine},
        std::move(identity), p.model, *p.allocator, *p.runner, *p.port,
        static_cast<WorkerOutbox&>(*this));
  }
  Later(options_.world->now(), [this] { Heartbeat(); });
}

void Cluster::Worker::Stop() {
  if (process_ == nullptr) return;
  process_->runner->Kill();
  process_->port.reset();
  // Events of the dead process stay in the world's heap and find its `alive` flags down.
  process_.reset();
}

HelloInfo Cluster::Worker::Hello() const {
  return {.role = role_,
          .incarnation = incarnation_,
          .numerics_id = process_->model.numerics_id,
          .layout_digest = LayoutDigest(process_->model.layout),
          .model_digest = process_->model.model_digest,
          .block_size = options_.block_size,
          .num_blocks = options_.num_blocks,
          .max_model_len = 64,
          .vocab_size = kVocab};
}

void Cluster::Worker::Later(Time when, std::function<void()> run) {
  options_.world->At(when, [this, incarnation = incarnation_, run = std::move(run)] {
    if (process_ != nullptr && incarnation_ == incarnation) run();
  });
}

void Cluster::Worker::Deliver(Message message) {
  if (process_ == nullptr) return;
  if (auto* broken = std::get_if<CallBroken>(&message)) process_->broken.insert(broken->call);
  if (draining()) {
    if (auto* opened = std::get_if<DecodeOpened>(&message)) process_->late.insert(opened->call);
    if (auto* opened = std::get_if<PrefillOpened>(&message)) process_->late.insert(opened->call);
  }
  process_->node().Handle(std::move(message), options_.world->now());
  process_->memory->PoisonFree();
  Step();
}

void Cluster::Worker::Step() {
  Process& p = *process_;
  p.node().Step(options_.world->now());
  p.memory->PoisonFree();
  const Time next = p.node().NextDeadline();
  if (next != kNever && next != p.wakeup) {
    p.wakeup = next;
    Later(next, [this] {
      process_->wakeup = kNever;
      Step();
    });
  }
  if (p.report_pending) return;
  p.report_pending = true;
  Later(std::max(options_.world->now(), p.next_report), [this] { Report(); });
}

void Cluster::Worker::Report() {
  process_->report_pending = false;
  process_->next_report = options_.world->now() + std::chrono::milliseconds(50);
  options_.report(process_->Status());
}

// A status is sent on change, and at least every 500 ms.
void Cluster::Worker::Heartbeat() {
  options_.report(process_->Status());
  Later(options_.world->now() + std::chrono::milliseconds(400), [this] { Heartbeat(); });
}

void Cluster::Worker::CheckAnswered(CallId call) {
  if (process_->broken.contains(call)) options_.violation("a worker goes on with a broken call");
}

void Cluster::Worker::Send(CallId call, WorkerEvent event) {
  CheckAnswered(call);
  if (process_->late.contains(call)) options_.violation("a draining worker takes a call");
  options_.from_worker(call, std::move(event), absl::OkStatus());
}

void Cluster::Worker::Close(CallId call, absl::Status status) {
  CheckAnswered(call);
  options_.from_worker(call, std::nullopt, std::move(status));
}

std::string Cluster::Worker::Audit() const {
  process_->runner->Check();
  process_->port->Check();
  // A call that is not computed waits for its transfer, or for a Rebind until a deadline.
  if (process_->decode) {
    const WorkerAudit audit = process_->decode->Audit(options_.world->now());
    if (audit.num_unowned > 0) return "a block is held by no call";
    for (const HeldCall& call : audit.calls) {
      const bool waits = call.state == "RESERVED" || call.state == "RECEIVING";
      if (waits && !call.transfer_open) return "a decode call waits for nothing";
    }
  }
  return process_->allocator->Audit();
}

std::string Cluster::Worker::Describe() const {
  if (process_ == nullptr) return "down";
  const Time now = options_.world->now();
  const WorkerAudit audit =
      process_->prefill ? process_->prefill->Audit(now) : process_->decode->Audit(now);
  const BlockCounts& b = audit.blocks;
  std::string text = absl::StrCat("free ", b.free, " reserved ", b.reserved, " filling ", b.filling,
                                  " ready ", b.ready, " cached ", b.cached, " draining ",
                                  b.draining, "; transfers ", process_->port->num_open());
  for (const HeldCall& call : audit.calls) {
    absl::StrAppend(&text, "; seq ", call.sequence.counter, "/", call.attempt, " ", call.state,
                    " blocks ", call.num_blocks, call.transfer_open ? " in transfer" : "");
  }
  return text;
}

std::string Cluster::Worker::AuditQuiet() const {
  if (process_ == nullptr) return "a worker did not come back";
  const Process& p = *process_;
  if (!idle()) return "a worker still has a call";
  if (p.port->num_open() > 0) return "a transfer is still open";
  const BlockCounts& counts = p.allocator->counts();
  if (counts.free + counts.cached != p.allocator->num_blocks()) return "a block is still held";
  return Audit();
}

int64_t Cluster::Worker::num_preemptions() const {
  return process_ && process_->decode ? process_->decode->num_preemptions() : 0;
}

int64_t Cluster::Worker::num_revoked() const {
  return process_ && process_->decode ? process_->decode->counters().revoked : 0;
}

}  // namespace baton::sim
