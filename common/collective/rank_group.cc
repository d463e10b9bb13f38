#include "common/collective/rank_group.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/fail_point.h"
#include "common/base/status.h"
#include "common/base/this_thread.h"

namespace baton {
namespace {

// Compute threads and their pools are called so.
constexpr const char* kComputeThreads = "compute";

// A bit for each code of an ending, and above them as many of the first rank's.
constexpr int kEndBits = 32;

}  // namespace

// Two buffers: a rank that comes to exchange i + 1 has enqueued all reads of i before the mark that
// it brings, and who writes for i + 2 does so behind the marks that all have brought to i + 1. So
// each waits for the marks of all others, whatever it needs.
class RankGroup::Rank : public Communicator {
 public:
  Rank(RankGroup* group, int rank, Device* device)
      : group_(group), rank_(rank), device_(*device) {}

  absl::Status MakeRoom(int64_t floats) {
    for (Buffer& buffer : partials_) {
      const auto bytes = (floats * static_cast<int64_t>(sizeof(float)) + 7) / 8 * 8;
      ASSIGN_OR_RETURN(buffer, device_.Allocate(bytes, MemoryKind::kDevice));
    }
    return absl::OkStatus();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->ranks_.size()); }
  float* partial() override { return PartialOf(exchanges_); }

  absl::StatusOr<std::span<const float* const>> Exchange() override {
    // A device that is to wait for a mark has to be told of it after it was made: at the meeting.
    ASSIGN_OR_RETURN(marks_[exchanges_ % 2], device_.MarkNow(Lane::kCompute));
    RETURN_IF_ERROR(in_turns_ ? MeetTimes(Call::kCapture, size()) : MeetTimes(Call::kExchange, 1));
    for (int r = 0; r < size(); ++r) {
      const Rank& other = *group_->ranks_[r];
      parts_[r] = other.PartialOf(exchanges_);
      if (r == rank_) continue;
      RETURN_IF_ERROR(
          device_.AfterPeer(Lane::kCompute, other.device_, other.marks_[exchanges_ % 2]));
    }
    ++exchanges_;
    return std::span<const float* const>(parts_.data(), size());
  }

  absl::StatusOr<uint32_t> Agree(uint32_t word) override {
    ASSIGN_OR_RETURN(const uint64_t words, group_->Meet(rank_, Call::kAgree, word));
    return static_cast<uint32_t>(words);
  }

  // Of the ranks one at a time enqueues into the graph, between two meetings: rank 0 before the
  // first, and so on. When each has come to its next Exchange, or to its end, it is rank 0's turn
  // again.
  absl::StatusOr<std::unique_ptr<Graph>> Capture(
      absl::FunctionRef<absl::Status()> pass) override {
    in_turns_ = true;
    auto graph = rank_ == 0 ? CaptureAsFirst(pass) : CaptureAsOther(pass);
    in_turns_ = false;
    RETURN_IF_ERROR(graph.status());
    // Before the first has ended the capture, the lanes of the others are still in it.
    RETURN_IF_ERROR(MeetTimes(Call::kCapture, 1));
    return graph;
  }

  // The graph runs on the first rank's lane alone: all others' come before and behind it by marks.
  absl::Status Launch(const Graph* graph) override {
    BATON_CHECK((graph == nullptr) == (rank_ != 0));
    ASSIGN_OR_RETURN(before_, device_.MarkNow(Lane::kCompute));
    RETURN_IF_ERROR(MeetTimes(Call::kLaunch, 1));
    absl::Status launched;
    if (rank_ == 0) {
      launched = LaunchBehindAll(*graph);
      // A lost device: the group ends with what it says.
      if (absl::IsUnavailable(launched)) return launched;
    }
    const auto own = static_cast<uint64_t>(launched.raw_code());
    ASSIGN_OR_RETURN(const uint64_t code, group_->Meet(rank_, Call::kLaunch, own));
    if (rank_ == 0) return launched;
    if (code != 0) {
      return absl::Status(static_cast<absl::StatusCode>(code), "rank 0 could not launch a graph");
    }
    const Rank& first = *group_->ranks_[0];
    return device_.AfterPeer(Lane::kCompute, first.device_, first.behind_);
  }

  absl::Status End(const absl::Status& own) override {
    const int bit = std::min(own.raw_code(), kEndBits - 1) + (rank_ == 0 ? kEndBits : 0);
    return group_->Meet(rank_, Call::kEnd, uint64_t{1} << bit, own).status();
  }

  void Fail(const absl::Status& status) override { group_->Fail(status); }

 private:
  absl::Status MeetTimes(Call call, int times) {
    for (int i = 0; i < times; ++i) RETURN_IF_ERROR(group_->Meet(rank_, call, 0).status());
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Graph>> CaptureAsFirst(absl::FunctionRef<absl::Status()> pass) {
    return device_.Capture([&]() -> absl::Status {
      ASSIGN_OR_RETURN(before_, device_.MarkNow(Lane::kCompute));
      RETURN_IF_ERROR(pass());
      RETURN_IF_ERROR(MeetTimes(Call::kCapture, size()));
      return AfterOthers(&Rank::behind_);
    });
  }

  absl::StatusOr<std::unique_ptr<Graph>> CaptureAsOther(absl::FunctionRef<absl::Status()> pass) {
    RETURN_IF_ERROR(MeetTimes(Call::kCapture, rank_));
    const Rank& first = *group_->ranks_[0];
    ASSIGN_OR_RETURN(behind_, device_.Join(first.device_, first.before_, pass));
    RETURN_IF_ERROR(MeetTimes(Call::kCapture, size() - rank_));
    return nullptr;
  }

  absl::Status LaunchBehindAll(const Graph& graph) {
    RETURN_IF_ERROR(AfterOthers(&Rank::before_));
    RETURN_IF_ERROR(device_.Launch(graph));
    ASSIGN_OR_RETURN(behind_, device_.MarkNow(Lane::kCompute));
    return absl::OkStatus();
  }

  absl::Status AfterOthers(Mark Rank::* mark) {
    for (const auto& other : group_->ranks_) {
      if (other.get() == this) continue;
      RETURN_IF_ERROR(device_.AfterPeer(Lane::kCompute, other->device_, (*other).*mark));
    }
    return absl::OkStatus();
  }

  float* PartialOf(uint64_t exchange) const {
    return partials_[exchange % 2].floats(DType::kF32).f32();
  }

  RankGroup* const group_;
  const int rank_;
  Device& device_;
  std::array<Buffer, 2> partials_;
  std::array<Mark, 2> marks_;  // Behind what is in them; others read one once all have met.
  // Of a launch: behind what this rank had enqueued, and the first's behind the graph. Of a
  // capture: where it begins, the first's, and behind what this rank has put into it.
  Mark before_;
  Mark behind_;
  bool in_turns_ = false;  // Amid a capture.
  std::array<const float*, kMaxRanks> parts_{};
  uint64_t exchanges_ = 0;  // Never begins anew: the buffers take turns from step to step.
};

absl::StatusOr<std::unique_ptr<RankGroup>> RankGroup::Create(std::span<Device* const> devices,
                                                             RankGroupOptions options) {
  BATON_CHECK(!devices.empty() && devices.size() <= kMaxRanks);
  if (!options.now) options.now = SteadyNow;
  if (!options.queued) options.queued = [] { return QueuedForCore(kComputeThreads); };
  std::unique_ptr<RankGroup> group(new RankGroup(std::move(options)));
  RETURN_IF_ERROR(group->MakeRoom(devices));
  return group;
}

RankGroup::RankGroup(RankGroupOptions options) : options_(std::move(options)) {}
RankGroup::~RankGroup() = default;

absl::Status RankGroup::MakeRoom(std::span<Device* const> devices) {
  for (Device* const device : devices) {
    ranks_.push_back(std::make_unique<Rank>(this, static_cast<int>(ranks_.size()), device));
    RETURN_IF_ERROR(ranks_.back()->MakeRoom(options_.partial_floats));
  }
  return absl::OkStatus();
}

Communicator& RankGroup::rank(int rank) { return *ranks_[rank]; }

void RankGroup::OnStart() {
  const std::lock_guard lock(mutex_);
  patience_.OnStart(options_.now());
}

Duration RankGroup::waited() const {
  const std::lock_guard lock(mutex_);
  return waited_;
}

// The others like the first, or well: behind the last meeting it reads alone what all have made.
bool RankGroup::HaveEnded() const {
  const uint64_t first = words_ >> kEndBits, others = words_ & ~(first << kEndBits);
  return first == others || others <= 1;
}

absl::StatusOr<uint64_t> RankGroup::Meet(int rank, Call call, uint64_t word,
                                         const absl::Status& own) {
  BATON_FAIL_POINT("rank.exchange");
  uint64_t round = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!failed_.ok()) return failed_;
    round = round_;
    if (arrived_ == 0) {
      call_ = call;
      cause_ = absl::OkStatus();
    }
    arrived_ |= uint32_t{1} << rank;
    words_ |= word;
    cause_.Update(own);
    const bool is_last = static_cast<size_t>(std::popcount(arrived_)) == ranks_.size();
    if (call != call_ || (is_last && call == Call::kEnd && !HaveEnded())) {
      cause_.Update(absl::InternalError(absl::StrCat("rank ", rank, " computes another step")));
      FailLocked(cause_);
      return failed_;
    }
    if (is_last) {
      agreed_ = std::exchange(words_, 0);
      arrived_ = 0;
      patience_.OnMeeting(options_.now());
      ++round_;
      met_.notify_all();
      return agreed_;
    }
  }
  Spin(round);
  return AwaitRound(round);
}

void RankGroup::Spin(uint64_t round) const {
  for (int i = 0; i < options_.spins && round_ == round && !has_failed_; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

absl::StatusOr<uint64_t> RankGroup::AwaitRound(uint64_t round) {
  std::unique_lock lock(mutex_);
  if (round_ != round) return agreed_;
  // The threads of the group are looked up once a wait is long.
  std::optional<RankWait> wait;
  const Time begin = options_.now();
  while (round_ == round && failed_.ok()) {
    met_.wait_for(lock, options_.slice);
    if (round_ != round || !failed_.ok()) break;
    if (!wait.has_value()) wait.emplace(begin, options_.queued());
    if (wait->GoesOn(options_.now(), patience_.Limit(), options_.queued)) continue;
    FailLocked(NotMet(wait->waited()));
  }
  waited_ += options_.now() - begin;
  if (round_ != round) return agreed_;
  return failed_;
}

absl::Status RankGroup::NotMet(Duration waited) const {
  std::string missing;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if ((arrived_ >> r & 1) == 0) absl::StrAppend(&missing, missing.empty() ? "" : ", ", r);
  }
  return absl::UnavailableError(absl::StrCat(
      "rank ", missing, " of ", ranks_.size(), " has not come to the others within ",
      std::chrono::duration_cast<std::chrono::milliseconds>(waited).count(), " ms"));
}

void RankGroup::FailLocked(const absl::Status& status) {
  if (!failed_.ok()) return;
  failed_ = status;
  has_failed_ = true;
  met_.notify_all();
}

void RankGroup::Fail(const absl::Status& status) {
  BATON_CHECK(!status.ok());
  const std::lock_guard lock(mutex_);
  FailLocked(status);
}

}  // namespace baton
