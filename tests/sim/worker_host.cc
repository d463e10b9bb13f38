#include "tests/sim/worker_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

// One hash per prefix of the tokens.
std::vector<uint64_t> PrefixHashes(const std::string& tenant, const std::vector<int32_t>& tokens) {
  std::vector<uint64_t> hashes;
  uint64_t hash = Random::Mix(tenant.empty() ? 0 : uint64_t(tenant[0]));
  for (int32_t token : tokens) hashes.push_back(hash = Random::Mix(hash ^ uint64_t(token)));
  return hashes;
}

}  // namespace

WorkerHost::WorkerHost(World& world, Trace& trace, Fabric& fabric, ControlNet& net, int column,
                       Options options)
    : Host(world, column),
      trace_(trace),
      fabric_(fabric),
      net_(net),
      options_(std::move(options)) {}

void WorkerHost::Start() {
  Begin();
  incarnation_ = uint64_t(options_.index + 1) * 1000 + epoch();
  if (trace_.on()) trace_.Add(world_.now(), column(), absl::StrCat("starts as ", incarnation_));
  draining_ = false;
  process_ = std::make_unique<Process>();
  prefixes_of_call_.clear();
  MakeNode();
  net_.WorkerStarted(options_.index);
  ReportSoon();
}

FakeRunner::Memories WorkerHost::MakeMemories(const BlockAllocator& allocator) const {
  FakeRunner::Memories memories;
  for (int rank = 0; rank < options_.tp; ++rank) {
    const HeadRange heads = HeadsHeld(rank, options_.tp, options_.arch.kv_heads);
    memories.push_back(
        std::make_unique<TagMemory>(TagLayout(options_.block_size, options_.arch, heads.count),
                                    allocator, heads, options_.violation));
  }
  return memories;
}

void WorkerHost::MakePorts() {
  Process& p = *process_;
  p.transport =
      std::make_unique<RankedTransport>(options_.arch.kv_heads, [this](TransferEvent event) {
        if (!process_->dying) Deliver(std::move(event));
      });
  std::vector<KvTransport*> ranks;
  for (int rank = 0; rank < options_.tp; ++rank) {
    p.ports.push_back(std::make_unique<FabricPort>(
        fabric_, *this, rank, FabricPort::Ranks{options_.tp, options_.arch.kv_heads}, incarnation_,
        *p.memories[rank], p.allocator->epochs(),
        p.transport->SinkOf(rank)));
    ranks.push_back(p.ports.back().get());
  }
  p.transport->SetRanks(std::move(ranks));
}

std::vector<DataRank> WorkerHost::DataRanks() const {
  std::vector<DataRank> ranks;
  for (int rank = 0; rank < options_.tp; ++rank) {
    ranks.push_back({.endpoint = Fabric::EndpointOf({column(), rank}),
                     .heads = HeadsHeld(rank, options_.tp, options_.arch.kv_heads)});
  }
  return ranks;
}

void WorkerHost::MakeNode() {
  Process& p = *process_;
  p.model = {.numerics_id = "sim",
             .layout = TagLayout(options_.block_size, options_.arch, options_.arch.kv_heads),
             .model_digest = 42,
             .vocab_size = kVocab,
             .max_model_len = options_.max_length,
             .original_len = options_.arch.original_len,
             .eos_token_ids = {kEos}};
  const int32_t groups = NumGroups(p.model.layout);
  p.allocator = std::make_unique<BlockAllocator>(options_.num_blocks * groups, options_.block_size,
                                                 7, WindowsOf(p.model.layout));
  p.memories = MakeMemories(*p.allocator);
  // Results and transfer events arrive as mail of their own event.
  p.runner = std::make_unique<FakeRunner>(
      world_, *this, p.memories, options_.arch, options_.violation,
      [this](AnyWorkerMail m) { Deliver(std::move(m)); },
      [this](const StepPlan& plan) { OnStepStart(plan); });
  p.runner->SetTokenTime(options_.token_time);
  MakePorts();
  const WorkerParts parts{.incarnation = incarnation_,
                          .engine = {.chunk_tokens = options_.chunk_tokens,
                                     .max_batch_sequences = options_.max_batch,
                                     .swap_blocks = options_.swap_blocks * groups,
                                     .finish_together = options_.finish_together,
                                     .steps_in_flight = options_.steps_in_flight,
                                     .follow_up_lead = options_.follow_up_lead},
                          .model = p.model,
                          .allocator = *p.allocator,
                          .runner = *p.runner,
                          .transport = *p.transport,
                          .outbox = *this};
  if (options_.role == Role::kPrefill) {
    p.prefill = std::make_unique<PrefillNode>(
        parts, PrefillNodeOptions{.max_waiting = options_.max_waiting});
    MakeLedger(nullptr);
    return;
  }
  DecodeIdentity identity{.new_ticket =
                              [this] {
                                return TicketId{incarnation_, process_->next_ticket++ << 3};
                              },
                          .key_of = [this](Incarnation sender) {
                            return process_->ports.front()->KeyOf(sender);
                          }};
  p.decode = std::make_unique<DecodeNode>(parts, DecodeNodeOptions{.ranks = DataRanks()},
                                          std::move(identity));
  MakeLedger(p.decode->host_pool());
  if (const BlockAllocator* host_pool = p.decode->host_pool()) {
    p.host_memories = MakeMemories(*host_pool);
    p.runner->AttachHost(&p.host_memories);
  }
}

void WorkerHost::MakeLedger(const BlockAllocator* host_pool) {
  Process& p = *process_;
  p.ledger = std::make_unique<WorkerLedger>(
      WorkerLedger::Options{.role = options_.role,
                            .max_batch = options_.max_batch,
                            .max_waiting = options_.max_waiting,
                            .chunk_tokens = options_.chunk_tokens,
                            .finish_together = options_.finish_together > 0,
                            .original_len = options_.arch.original_len},
      p.model.layout, *p.allocator, host_pool);
}

void WorkerHost::Kill() {
  if (process_ == nullptr) return;
  if (trace_.on()) trace_.Add(world_.now(), column(), "dies");
  past_ = totals();
  End();
  process_->dying = true;
  process_->transport->Close();
  process_->ports.clear();
  process_.reset();
  net_.WorkerDied(options_.index);
}

void WorkerHost::CloseCalls() {
  const auto live = process_->live;
  for (const auto& [call, state] : live) {
    net_.Close(options_.index, call, absl::UnavailableError("the worker is shutting down"));
    Deliver(CallBroken{call});
    // Each is a turn of its own.
    if (std::string bad = Audit(); !bad.empty()) options_.violation(bad);
  }
}

// A process that takes the place of one that has gone may be of the next release, and again of
// this.
HelloInfo WorkerHost::Hello() const {
  const bool is_next = options_.upgrades != 0 && epoch() > 1 &&
                       Random::Mix(options_.upgrades ^ incarnation_) % 2 == 0;
  return {.kv_wire_version = kKvWireVersion + (is_next ? 1 : 0),
          .role = options_.role,
          .incarnation = incarnation_,
          .numerics_id = process_->model.numerics_id,
          .layout_digest = LayoutDigest(process_->model.layout),
          .model_digest = process_->model.model_digest,
          .block_size = options_.block_size,
          .num_blocks = process_->allocator->num_blocks(),
          .layer_groups = process_->allocator->num_groups(),
          .max_model_len = options_.max_length,
          .vocab_size = kVocab,
          .computes_prompts = options_.role == Role::kDecode,
          .scores_prompts = options_.role == Role::kDecode};
}

// ---- Mail --------------------------------------------------------------------------------------

void WorkerHost::OnOpened(CallId call, const SequenceId& sequence, Duration timeout) {
  process_->live[call] = {.sequence = sequence, .deadline = LocalNow() + timeout};
  ++process_->live_sequences[sequence];
  if (draining_) process_->late.insert(call);
}

void WorkerHost::EndLive(CallId call) {
  auto it = process_->live.find(call);
  if (it == process_->live.end()) return;
  if (--process_->live_sequences[it->second.sequence] == 0) {
    process_->live_sequences.erase(it->second.sequence);
  }
  process_->live.erase(it);
}

void WorkerHost::Deliver(AnyWorkerMail mail) {
  Process& p = *process_;
  if (auto* broken = std::get_if<CallBroken>(&mail)) {
    p.broken.insert(broken->call);
    EndLive(broken->call);
  } else if (auto* opened = std::get_if<DecodeOpened>(&mail)) {
    const DecodeRequest& r = opened->request;
    prefixes_of_call_[opened->call] = PrefixHashes(r.tenant, r.tokens);
    OnOpened(opened->call, r.sequence, r.timeout);
  } else if (auto* opened = std::get_if<PrefillOpened>(&mail)) {
    const PrefillRequest& r = opened->request;
    prefixes_of_call_[opened->call] = PrefixHashes(r.tenant, r.tokens);
    OnOpened(opened->call, r.sequence, r.timeout);
  } else if (std::holds_alternative<Drain>(mail)) {
    draining_ = true;
  }
  std::vector<int32_t> sent;  // By now, and what a decode worker answers to it.
  std::string tenant;
  if (auto* opened = std::get_if<DecodeOpened>(&mail)) {
    const DecodeRequest& r = opened->request;
    tenant = r.tenant;
    sent.assign(r.tokens.begin(), r.tokens.begin() + r.prompt_length);
    const std::vector<int32_t> answer = ExpectedTokens(sent, r.sampling, options_.arch);
    sent.insert(sent.end(), answer.begin(), answer.end());
  } else if (auto* opened = std::get_if<PrefillOpened>(&mail)) {
    tenant = opened->request.tenant;
    sent = opened->request.tokens;
  }
  p.ledger->OnMail(mail, LocalNow());
  p.Handle(std::move(mail), LocalNow());
  LearnPrefixes(tenant, sent);
  p.PoisonFree();
  if (!world_.Hit(Fault::kLazyStep)) return Step();
  if (std::exchange(p.step_pending, true)) return;
  After(world_.Micros(1, 300), [this] {
    process_->step_pending = false;
    Step();
  });
}

// A call's own tokens are no cache hit of it: they are learnt after the node took it.
void WorkerHost::LearnPrefixes(const std::string& tenant, const std::vector<int32_t>& tokens) {
  for (uint64_t hash : PrefixHashes(tenant, tokens)) process_->known_prefixes.insert(hash);
}

void WorkerHost::CheckCacheHit(CallId call, int32_t cached_tokens) {
  if (cached_tokens == 0) return;
  const std::vector<uint64_t>& hashes = prefixes_of_call_.at(call);
  if (cached_tokens >= static_cast<int32_t>(hashes.size())) {
    return options_.violation("a whole prompt is said to be cached");
  }
  if (!process_->known_prefixes.contains(hashes[cached_tokens - 1])) {
    options_.violation("a prefix is said to be cached that this tenant never sent to this worker");
  }
}

void WorkerHost::Step() {
  Process& p = *process_;
  p.WithNode([now = LocalNow()](auto& node) { node.Step(now); });
  p.PoisonFree();
  const Time next = p.WithNode([](const auto& node) { return node.NextDeadline(); });
  if (next != kNever) {
    const Time when = std::max(ToWorld(next), world_.now());
    if (when < p.wakeup) {
      p.wakeup = when;
      At(when, [this, when] {
        if (process_->wakeup != when) return;
        process_->wakeup = kNever;
        Step();
      });
    }
  }
  ReportSoon();
}

// As the edge does: soon after a change, and as a heartbeat.
void WorkerHost::ReportSoon() {
  Process& p = *process_;
  if (std::exchange(p.report_pending, true)) return;
  At(std::max(world_.now(), p.next_report), [this] { Report(); });
}

void WorkerHost::Report() {
  Process& p = *process_;
  p.report_pending = false;
  p.next_report = world_.now() + milliseconds(50);
  net_.Report(options_.index, p.Status());
  const uint64_t serial = ++p.report_serial;
  After(milliseconds(450), [this, serial] {
    if (process_->report_serial == serial) ReportSoon();
  });
}

void WorkerHost::Emit(CallId call, WorkerEvent event) {
  if (process_->broken.contains(call)) {
    options_.violation("I8: a worker goes on with a broken call");
  }
  if (process_->late.contains(call)) options_.violation("a draining worker takes a call");
  if (auto* reserved = std::get_if<ReservedEvent>(&event)) {
    // What lies behind the window is not to be sent either.
    const auto num_tokens = static_cast<int32_t>(prefixes_of_call_.at(call).size());
    const int32_t behind = TokensLeftOut(process_->model.layout, num_tokens);
    if (on_cached) on_cached(reserved->cached_tokens, num_tokens);
    if (reserved->cached_tokens != behind) CheckCacheHit(call, reserved->cached_tokens);
  } else if (auto* prefilled = std::get_if<PrefilledEvent>(&event)) {
    const auto num_tokens = static_cast<int32_t>(prefixes_of_call_.at(call).size());
    if (on_cached) on_cached(prefilled->cached_tokens, num_tokens);
    CheckCacheHit(call, prefilled->cached_tokens);
  } else if (auto* tokens = std::get_if<TokensEvent>(&event)) {
    CheckCacheHit(call, tokens->cached_tokens);
  }
  process_->ledger->OnSend(call, event);
  net_.SendEvent(options_.index, call, std::move(event));
}

void WorkerHost::Close(CallId call, absl::Status status) {
  if (process_->broken.contains(call)) {
    options_.violation("I8: a worker goes on with a broken call");
  }
  EndLive(call);
  process_->ledger->OnClose(call, status);
  net_.Close(options_.index, call, std::move(status));
}

// ---- Checks ------------------------------------------------------------------------------------

void WorkerHost::OnStepStart(const StepPlan& plan) {
  int32_t num_tokens = 0;
  for (const StepRow& row : plan.rows) {
    num_tokens += static_cast<int32_t>(row.tokens.size());
    if (!process_->live_sequences.contains(row.sequence)) {
      options_.violation("I8: a step computes for a call that has ended");
    }
  }
  // A prefill beside full decode rows gets one token of its own.
  if (static_cast<int32_t>(plan.rows.size()) > options_.max_batch ||
      num_tokens > std::max(options_.chunk_tokens, 1) + 1) {
    options_.violation("I11: a step is larger than its caps");
  }
  process_->ledger->OnStepStart(plan);
  if (!plan.swap_out.empty() || !plan.swap_in.empty() || !plan.copies.empty()) {
    process_->cancels_moving = world_.Hit(Fault::kCancelMoving);
  }
  process_->blocks_swapped_in += static_cast<int64_t>(plan.swap_in.size());
  for (const auto& [call, live] : process_->live) {
    if (LocalNow() > live.deadline) options_.violation("I8: a call outlives its deadline");
  }
}

std::string WorkerHost::AuditHolds() {
  Process& p = *process_;
  const Time now = LocalNow();
  const WorkerAudit audit = p.prefill ? p.prefill->Audit(now) : p.decode->Audit(now);
  if (audit.num_unowned != 0) return "I1: a block is held that no call owns";
  if (!audit.unowned_leg_ranks.empty()) return "I1: a leg is open that no call owns";
  std::map<std::string, Time> held;
  int32_t num_waiting = 0;
  for (const HeldCall& call : audit.calls) {
    num_waiting += call.state == "WAITING" ? 1 : 0;
    const Duration limit = call.state == "KEPT"      ? seconds(10)
                           : call.state == "UNBOUND" ? seconds(5)
                           : call.state == "PARKED"  ? seconds(2)
                                                     : Duration::max();
    if (limit == Duration::max()) continue;
    const std::string key =
        absl::StrCat(call.sequence.router, "-", call.sequence.counter, "/", call.attempt);
    auto it = p.held_since.find(key);
    const Time since = it == p.held_since.end() ? now : it->second;
    held.emplace(key, since);
    // After a pause the node has not looked at the time yet.
    const bool is_late = p.step_pending || p.wakeup <= world_.now();
    if (!is_late && now - since > limit) {
      return absl::StrCat("I11: ", call.state, " is held beyond its limit");
    }
  }
  p.held_since = std::move(held);
  if (num_waiting > options_.max_waiting) return "I11: more calls wait than allowed";
  return AuditLedger(audit);
}

std::string WorkerHost::AuditLedger(const WorkerAudit& audit) {
  Process& p = *process_;
  WorkerLedger::Counted counted;
  if (p.decode) {
    counted = {.preemptions = p.decode->num_preemptions(),
               .swaps = p.decode->num_swaps(),
               .revoked = p.decode->counters().revoked};
  }
  const std::string bad = p.ledger->Check(audit, counted, p.step_pending, LocalNow());
  if (std::exchange(p.cancels_moving, false)) {
    for (const SequenceId& sequence : p.ledger->Moving()) options_.cancel(sequence);
  }
  return bad;
}

std::string WorkerHost::Audit() {
  if (process_ == nullptr) return "";
  process_->runner->Check();
  for (const auto& port : process_->ports) port->Check();
  if (std::string bad = AuditHolds(); !bad.empty()) return bad;
  if (std::string bad = process_->allocator->Audit(); !bad.empty()) return "I1: " + bad;
  if (process_->Status().blocks.total() != process_->allocator->num_blocks()) {
    return "I1: what is told of the blocks is not all of them";
  }
  const BlockAllocator* host_pool = process_->decode ? process_->decode->host_pool() : nullptr;
  if (host_pool == nullptr) return "";
  const std::string bad = host_pool->Audit();
  return bad.empty() ? "" : "I1: in host memory, " + bad;
}

std::string WorkerHost::AuditQuiet() {
  if (process_ == nullptr) return "a worker did not come back";
  if (!idle()) return "I1: a worker still has a call";
  if (process_->num_open() > 0) return "I1: a transfer is still open";
  for (const auto& port : process_->ports) {
    if (port->held_slots() > 0) return "NCCL: a slot is still held";
  }
  const BlockCounts& counts = process_->allocator->counts();
  if (counts.free + counts.cached != process_->allocator->num_blocks()) {
    return "I1: a block is still held";
  }
  return Audit();
}

std::string WorkerHost::DescribeState() const {
  if (process_ == nullptr) return "down";
  const WorkerStatus s = process_->Status();
  const BlockCounts& b = s.blocks;
  std::string text =
      absl::StrCat("free ", b.free, " reserved ", b.reserved, " filling ", b.filling, " ready ",
                   b.ready, " cached ", b.cached, " draining ", b.draining, "; running ", s.running,
                   " waiting ", s.waiting, " preempted ", s.preempted, " computing ", s.computing,
                   " transfers ", process_->num_open());
  const Time now = LocalNow();
  const WorkerAudit audit =
      process_->prefill ? process_->prefill->Audit(now) : process_->decode->Audit(now);
  for (const HeldCall& call : audit.calls) {
    absl::StrAppend(&text, "\n    ", call.sequence.counter, "/", call.attempt, " ", call.state,
                    " blocks ", call.num_blocks, call.transfer_open ? " transfer open" : "",
                    " age ms ", call.age / milliseconds(1));
  }
  for (const auto& port : process_->ports) text += port->DescribeNccl();
  return text;
}

WorkerHost::Totals& WorkerHost::Totals::operator+=(const Totals& other) {
  preemptions += other.preemptions;
  swaps += other.swaps;
  blocks_swapped_in += other.blocks_swapped_in;
  revoked += other.revoked;
  rebinds += other.rebinds;
  sends += other.sends;
  computed_here += other.computed_here;
  joined += other.joined;
  parked += other.parked;
  resumed += other.resumed;
  handoffs_failed += other.handoffs_failed;
  economy += other.economy;
  return *this;
}

WorkerHost::Totals WorkerHost::totals() const {
  Totals t = past_;
  if (process_ == nullptr) return t;
  t.economy += process_->ledger->totals();
  if (process_->decode) {
    t.preemptions += process_->decode->num_preemptions();
    t.swaps += process_->decode->num_swaps();
    t.blocks_swapped_in += process_->blocks_swapped_in;
    t.revoked += process_->decode->counters().revoked;
    t.rebinds += process_->decode->counters().rebinds;
    t.computed_here += process_->decode->counters().computed_here;
    t.joined += process_->decode->counters().joined;
    t.parked += process_->decode->counters().parked;
    t.resumed += process_->decode->counters().resumed;
    t.handoffs_failed += process_->decode->counters().handoffs_failed;
  } else {
    t.sends += process_->prefill->counters().sends;
  }
  return t;
}

}  // namespace baton::sim
