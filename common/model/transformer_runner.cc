#include "common/model/transformer_runner.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/fail_point.h"
#include "common/base/status.h"
#include "common/base/this_thread.h"

namespace baton {
namespace {

// Of one list; a longer one waits for the list before. Without swapping there are few: a block of
// each further choice.
constexpr int64_t kMaxPieces = 1 << 16;
constexpr int64_t kFewPieces = 1 << 12;

StepBounds BoundsOf(const RunnerParts& parts) {
  StepBounds bounds{.vocab_size = parts.info.vocab_size,
                    .max_model_len = parts.info.max_model_len,
                    .block_size = parts.info.layout.block_size,
                    .num_blocks = parts.cache->num_blocks(),
                    .windows = {}};
  for (const KvLayerGroup& group : parts.info.layout.groups) bounds.windows.push_back(group.window);
  return bounds;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransformerRunner>> TransformerRunner::Create(RunnerParts parts) {
  Device& device = *parts.device;
  const int64_t num_pieces = parts.swap != nullptr ? kMaxPieces : kFewPieces;
  ASSIGN_OR_RETURN(
      Buffer pieces,
      device.Allocate(num_pieces * static_cast<int64_t>(sizeof(CopyPiece)), MemoryKind::kPinned));
  const int32_t nice = parts.nice;
  const bool leads = parts.results != nullptr;
  std::unique_ptr<TransformerRunner> runner(
      new TransformerRunner(std::move(parts), std::move(pieces)));
  RETURN_IF_ERROR(runner->graphs_.Capture(
      runner->parts_.graph_shapes,
      {device, *runner->parts_.transformer, runner->metadata_, *runner->parts_.cache,
       runner->parts_.group},
      runner->bounds_));
  runner->thread_ = std::jthread([loop = runner.get(), nice, leads](const std::stop_token& ending) {
    NameThisThread(leads ? "compute" : "compute-rank");
    LowerThisThread(nice);
    loop->ComputeLoop(ending);
  });
  return runner;
}

TransformerRunner::TransformerRunner(RunnerParts parts, Buffer pieces)
    : parts_(std::move(parts)),
      device_(*parts_.device),
      leads_(parts_.results != nullptr),
      bounds_(BoundsOf(parts_)),
      metadata_(std::move(parts_.metadata)),
      pieces_(std::move(pieces)),
      num_pieces_(pieces_.size_bytes() / static_cast<int64_t>(sizeof(CopyPiece))) {}

TransformerRunner::~TransformerRunner() { End(); }

void TransformerRunner::End() {
  Stop();
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void TransformerRunner::Stop() { stopping_ = true; }

void TransformerRunner::Start(std::shared_ptr<const StepPlan> plan) {
  BATON_CHECK(plan != nullptr);
  const std::lock_guard lock(mutex_);
  BATON_CHECK(num_started_ == 0 || (num_started_ == 1 && IsFollowUp(*plan)));
  ++num_started_;
  started_.push_back(std::move(plan));
  wake_.notify_one();
}

void TransformerRunner::ComputeLoop(const std::stop_token& ending) {
  while (NextPass(ending)) {
    std::optional<StepDone> done = RunStep();
    if (!done.has_value()) return;
    before_ = OutcomeOf(*done);
    {
      // The sink may start the next step from within OnStepDone.
      const std::lock_guard lock(mutex_);
      --num_started_;
    }
    parts_.sink->OnStepDone(*std::move(done));
  }
}

bool TransformerRunner::NextPass(const std::stop_token& ending) {
  if (ahead_.has_value()) {
    running_ = *std::exchange(ahead_, std::nullopt);
    return true;
  }
  std::unique_lock lock(mutex_);
  if (!wake_.wait(lock, ending, [this] { return !started_.empty(); })) return false;
  running_ = {.plan = std::move(started_.front()), .results = parts_.results.get()};
  started_.pop_front();
  return true;
}

std::optional<StepDone> TransformerRunner::RunStep() {
  StepDone done{.step = running_.plan->step, .status = {}, .rows = {}};
  if (IsFollowUp(*running_.plan) && !before_.status.ok()) {
    done.status = before_.status;
  } else if (running_.is_ahead) {
    done.status = ReadAhead();
  } else {
    if (IsFollowUp(*running_.plan)) running_.plan = WithTokens(*running_.plan, before_);
    done.status = Enqueue(running_);
  }
  done.host = running_.host;
  const absl::Status ended = EndStep(done.status);
  can_be_followed_ = false;
  if (!ended.ok()) {
    if (parts_.group != nullptr) parts_.group->Fail(ended);
    if (parts_.lost) parts_.lost(ended);
    return std::nullopt;
  }
  const bool has_rows = done.status.ok() && !running_.plan->rows.empty();
  if (has_rows && leads_) done.rows = running_.results->Take();
  return done;
}

absl::Status TransformerRunner::EndStep(const absl::Status& enqueued) {
  // Also after an error: what was enqueued before it goes on, and its blocks are not free. Of a
  // follow-up behind it nothing is waited for.
  absl::Status ended = AwaitReports();
  if (ended.ok()) {
    ended = running_.end.number == 0 ? AwaitLane(Lane::kCompute) : Await(running_.end);
  }
  if (ended.ok()) ended = AwaitLane(Lane::kCopies);
  if (!ended.ok()) return ended;
  if (absl::IsUnavailable(enqueued)) return enqueued;
  // A rank that hangs behind the last sums is missed here.
  return parts_.group == nullptr ? absl::OkStatus() : parts_.group->End(enqueued);
}

absl::Status TransformerRunner::GoOn() {
  uint32_t stop = leads_ && stopping_ ? 1 : 0;
  if (parts_.group != nullptr) {
    ASSIGN_OR_RETURN(stop, parts_.group->Agree(stop));
  }
  return stop == 0 ? absl::OkStatus() : absl::CancelledError("the runner is stopping");
}

absl::Status TransformerRunner::Enqueue(Pass& pass) {
  const Time begin = SteadyNow();
  const StepPlan& plan = *pass.plan;
  RETURN_IF_ERROR(GoOn());
  RETURN_IF_ERROR(MoveBlocks(plan));
  if (plan.rows.empty()) return absl::OkStatus();
  const int32_t graph_size = graphs_.SizeFor(plan);
  RETURN_IF_ERROR(metadata_.Build(plan, bounds_, graph_size));
  if (leads_) pass.results->Build(plan);
  RETURN_IF_ERROR(metadata_.Upload(leads_ ? pass.results->upload() : CopyPiece{}));
  RETURN_IF_ERROR(EnqueuePass(pass, graph_size));
  pass.host = SteadyNow() - begin;
  return ReadLogits();
}

absl::Status TransformerRunner::EnqueuePass(Pass& pass, int32_t graph_size) {
  if (graph_size == 0) {
    const auto layer_done = [this, &pass](int32_t layer) -> absl::Status {
      if (parts_.group != nullptr) BATON_FAIL_POINT("rank.layer");
      RETURN_IF_ERROR(ReportLayers(pass, layer, layer + 1));
      return SendReports();
    };
    return parts_.transformer->Forward(metadata_, *parts_.cache, layer_done);
  }
  RETURN_IF_ERROR(parts_.transformer->Replay(graphs_.Of(graph_size), graph_size));
  // Of a graph's layers nobody knows before all of it has ended.
  return ReportLayers(pass, 0, NumLayers(parts_.info.layout));
}

absl::Status TransformerRunner::ReportLayers(Pass& pass, int32_t first, int32_t end) {
  ASSIGN_OR_RETURN(const Mark mark, device_.MarkNow(Lane::kCompute));
  for (int32_t layer = first; layer < end; ++layer) {
    pass.reports.push_back({.mark = mark, .layer = layer});
  }
  return absl::OkStatus();
}

// What its upload overwrites has landed long ago, unless the running step was itself enqueued ahead
// and has just begun: then the next look will do.
absl::Status TransformerRunner::EnqueueAhead() {
  ASSIGN_OR_RETURN(const bool landed, metadata_.HasLanded());
  if (!landed) return absl::OkStatus();
  Pass pass{.is_ahead = true};
  {
    const std::lock_guard lock(mutex_);
    if (started_.empty()) return absl::OkStatus();
    pass.plan = started_.front();
  }
  can_be_followed_ = false;  // By another than this.
  const bool is_other = running_.results == parts_.follow_up_results.get();
  pass.results = is_other ? parts_.results.get() : parts_.follow_up_results.get();
  pass.results->Build(*pass.plan);
  if (!pass.results->CanBeFollowed()) return absl::OkStatus();  // A row is sampled by the host.
  {
    const std::lock_guard lock(mutex_);
    started_.pop_front();
  }
  ahead_ = std::move(pass);
  ahead_->enqueued = EnqueueAll(*ahead_, *running_.results);
  return absl::IsUnavailable(ahead_->enqueued) ? ahead_->enqueued : absl::OkStatus();
}

absl::Status TransformerRunner::EnqueueAll(Pass& pass, const StepResults& before) {
  const Time begin = SteadyNow();
  const int32_t graph_size = graphs_.SizeFor(*pass.plan);
  RETURN_IF_ERROR(metadata_.Build(*pass.plan, bounds_, graph_size));
  RETURN_IF_ERROR(metadata_.Upload(pass.results->upload()));
  RETURN_IF_ERROR(pass.results->TakeTokens(before, metadata_.tokens_on_device()));
  RETURN_IF_ERROR(EnqueuePass(pass, graph_size));
  const int64_t num_rows = pass.results->num_rows();
  ASSIGN_OR_RETURN(const Floats logits, parts_.transformer->Logits(0, num_rows));
  RETURN_IF_ERROR(pass.results->Enqueue(0, num_rows, logits));
  ASSIGN_OR_RETURN(pass.end, device_.MarkNow(Lane::kCompute));
  pass.host = SteadyNow() - begin;
  return absl::OkStatus();
}

absl::Status TransformerRunner::AddPiece(const CopyPiece& piece) {
  if (pieces_end_ == num_pieces_) {
    RETURN_IF_ERROR(FlushPieces());
    RETURN_IF_ERROR(AwaitLane(Lane::kCopies));
    pieces_begin_ = pieces_end_ = 0;
  }
  pieces_.array<CopyPiece>()[pieces_end_++] = piece;
  return absl::OkStatus();
}

absl::Status TransformerRunner::FlushPieces() {
  const int64_t begin = std::exchange(pieces_begin_, pieces_end_);
  if (begin == pieces_end_) return absl::OkStatus();
  const std::span<const CopyPiece> all(pieces_.array<CopyPiece>(), num_pieces_);
  return device_.CopyPieces(Lane::kCopies, all.subspan(begin, pieces_end_ - begin));
}

// Neighbours in both pools are one piece of each plane.
absl::Status TransformerRunner::CopyBlocks(const KvCache& from, const KvCache& to,
                                           std::span<const BlockMove> moves) {
  for (size_t first = 0, count = 1; first < moves.size(); first += count) {
    const BlockMove& move = moves[first];
    for (count = 1; first + count < moves.size(); ++count) {
      const BlockMove& next = moves[first + count];
      const auto distance = static_cast<BlockId>(count);
      if (next.source != move.source + distance) break;
      if (next.destination != move.destination + distance) break;
    }
    for (size_t i = 0; i < from.planes().size(); ++i) {
      const int64_t stride = from.planes()[i].stride;
      RETURN_IF_ERROR(AddPiece({.from = from.base() + from.BlockOffset(i, move.source),
                                .to = to.base() + to.BlockOffset(i, move.destination),
                                .bytes = stride * static_cast<int64_t>(count)}));
    }
  }
  return FlushPieces();
}

// In, and then copies, before the kernels that read them. Out behind those and beside the step: its
// blocks are written by nobody before StepDone.
absl::Status TransformerRunner::MoveBlocks(const StepPlan& plan) {
  BATON_CHECK(parts_.swap != nullptr || (plan.swap_out.empty() && plan.swap_in.empty()));
  pieces_begin_ = pieces_end_ = 0;
  if (!plan.swap_in.empty()) RETURN_IF_ERROR(CopyBlocks(*parts_.swap, *parts_.cache, plan.swap_in));
  RETURN_IF_ERROR(CopyBlocks(*parts_.cache, *parts_.cache, plan.copies));
  if (!plan.swap_in.empty() || !plan.copies.empty()) {
    ASSIGN_OR_RETURN(const Mark mark, device_.MarkNow(Lane::kCopies));
    RETURN_IF_ERROR(device_.After(Lane::kCompute, mark));
  }
  if (plan.swap_out.empty()) return absl::OkStatus();
  return CopyBlocks(*parts_.cache, *parts_.swap, plan.swap_out);
}

// A slice of rows at a time: the logits of a long prompt's tokens would take gigabytes, and the
// time of their products and scores is that of many layers.
absl::Status TransformerRunner::ReadLogits() {
  const int64_t num_rows = metadata_.wanted().num_tokens;
  BATON_CHECK(!leads_ || num_rows == running_.results->num_rows());
  const int64_t slice = device_.info().logit_rows;
  absl::Status read;  // By the lead. After an error it only meets the others, who know of none.
  for (int64_t first = 0; first < num_rows; first += slice) {
    const int64_t count = std::min(slice, num_rows - first);
    ASSIGN_OR_RETURN(const Floats logits, parts_.transformer->Logits(first, count));
    // The other ranks' token ids have their logits when all have come; and when all come again, the
    // lead has read them.
    if (parts_.group != nullptr) RETURN_IF_ERROR(AwaitLane(Lane::kCompute));
    RETURN_IF_ERROR(GoOn());
    if (leads_ && read.ok()) read = ReadSlice(first, count, logits);
    if (parts_.group == nullptr || absl::IsUnavailable(read)) RETURN_IF_ERROR(read);
  }
  return read;
}

absl::Status TransformerRunner::ReadSlice(int64_t first, int64_t count, Floats logits) {
  RETURN_IF_ERROR(running_.results->Enqueue(first, count, logits));
  if (first + count == running_.results->num_rows()) {
    ASSIGN_OR_RETURN(running_.end, device_.MarkNow(Lane::kCompute));
  }
  return FinishSlice(first, count);
}

// What was enqueued ahead has one slice.
absl::Status TransformerRunner::ReadAhead() {
  RETURN_IF_ERROR(running_.enqueued);
  RETURN_IF_ERROR(GoOn());
  return FinishSlice(0, running_.results->num_rows());
}

absl::Status TransformerRunner::FinishSlice(int64_t first, int64_t count) {
  if (running_.end.number == 0) {
    RETURN_IF_ERROR(AwaitLane(Lane::kCompute));
  } else {
    can_be_followed_ = parts_.follow_up_results != nullptr && running_.results->CanBeFollowed();
    RETURN_IF_ERROR(AwaitReports());
    RETURN_IF_ERROR(Await(running_.end));
  }
  RETURN_IF_ERROR(running_.results->Finish());
  if (count == device_.info().logit_rows) {
    const auto rows = static_cast<int32_t>(first + count);
    parts_.sink->OnRowsDone({.step = running_.plan->step, .rows = rows});
  }
  return absl::OkStatus();
}

absl::Status TransformerRunner::SendReports() {
  while (!running_.reports.empty()) {
    ASSIGN_OR_RETURN(const bool done, device_.IsDone(running_.reports.front().mark));
    if (!done) break;
    const int32_t layer = running_.reports.front().layer;
    running_.reports.pop_front();
    parts_.sink->OnLayerDone({.step = running_.plan->step, .layer = layer});
  }
  return absl::OkStatus();
}

absl::Status TransformerRunner::Await(Mark mark) {
  return WaitUntil(device_, device_.info().limit, [&]() -> absl::StatusOr<bool> {
    ASSIGN_OR_RETURN(const bool done, device_.IsDone(mark));
    if (!done && can_be_followed_) RETURN_IF_ERROR(EnqueueAhead());
    return done;
  });
}

absl::Status TransformerRunner::AwaitReports() {
  while (!running_.reports.empty()) {
    RETURN_IF_ERROR(Await(running_.reports.front().mark));
    RETURN_IF_ERROR(SendReports());
  }
  return absl::OkStatus();
}

absl::Status TransformerRunner::AwaitLane(Lane lane) {
  RETURN_IF_ERROR(AwaitReports());
  ASSIGN_OR_RETURN(const Mark mark, device_.MarkNow(lane));
  return Await(mark);
}

}  // namespace baton
