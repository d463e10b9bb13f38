#include "router/worker_directory.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/strings/str_format.h"

namespace baton {
namespace {

constexpr int kColdFactor = 8;

// Workers exchange KV and recover for each other only within one group: all that makes the bits.
uint64_t GroupOf(const HelloInfo& hello) {
  return absl::HashOf(hello.protocol_version, hello.numerics_id, hello.layout_digest,
                      hello.model_digest, hello.tp_size);
}

}  // namespace

WorkerDirectory::WorkerDirectory(const std::vector<Role>& roles, Duration hang_limit)
    : hang_limit_(hang_limit) {
  for (Role role : roles) workers_.push_back({.role = role});
}

bool WorkerDirectory::OnUp(int32_t worker, const HelloInfo& hello, Time now) {
  Worker& w = workers_[worker];
  const bool is_new = w.hello.incarnation != hello.incarnation;
  w.hello = hello;
  w.group = GroupOf(hello);
  w.last_progress = now;
  w.stands_since = now;
  w.last_status = now;
  w.up_since = now;
  w.hung = false;
  w.skip_until = {};
  w.status = {.incarnation = hello.incarnation};
  w.up = false;
  if (hello.role != w.role) {
    w.reason = "its role is not the one it is listed under";
  } else if (hello.protocol_version != kProtocolVersion) {
    w.reason = absl::StrFormat("it speaks protocol %d, this router %d", hello.protocol_version,
                               kProtocolVersion);
  } else {
    w.up = true;
    w.reason.clear();
  }
  return is_new;
}

void WorkerDirectory::OnStatus(int32_t worker, const WorkerStatus& status, Time now) {
  Worker& w = workers_[worker];
  if (status.incarnation != w.hello.incarnation) return;
  if (status.progress != w.status.progress) w.last_progress = now;
  const bool moved = status.progress != w.status.progress || !status.computing;
  if (moved) w.stands_since = now;
  // A worker that was only silent is back with its first word, one that stood still with progress.
  if (w.hung && moved) {
    w.hung = false;
    w.reason.clear();
  }
  w.last_status = now;
  w.status = status;
  w.skip_until = {};
}

void WorkerDirectory::OnDown(int32_t worker, const std::string& reason) {
  workers_[worker].up = false;
  workers_[worker].reason = reason;
}

Time WorkerDirectory::HungAt(int32_t worker) const {
  const Worker& w = workers_[worker];
  if (!w.up || w.hung) return kNever;
  const Time silent = w.last_status + hang_limit_;
  if (!w.status.computing) return silent;
  // Before the first layer has ended nobody knows how long one takes.
  const bool is_cold = w.status.longest_layer == Duration::zero();
  const Duration patience =
      is_cold ? kColdFactor * hang_limit_ : std::max(hang_limit_, 20 * w.status.longest_layer);
  return std::min(silent, w.stands_since + patience);
}

void WorkerDirectory::Forgive(Time now) {
  for (Worker& w : workers_) {
    w.last_status = now;
    w.stands_since = now;
  }
}

Time WorkerDirectory::NextHungAt() const {
  Time next = kNever;
  for (int32_t i = 0; i < static_cast<int32_t>(workers_.size()); ++i) {
    next = std::min(next, HungAt(i));
  }
  return next;
}

void WorkerDirectory::MarkHung(int32_t worker) {
  workers_[worker].hung = true;
  workers_[worker].reason = "it stopped making progress";
}

Candidate WorkerDirectory::CandidateOf(int32_t worker) const {
  const Worker& w = workers_[worker];
  return {.worker = worker,
          .group = w.group,
          .pending_tokens = w.pending_tokens,
          .capacity_tokens = std::max<int64_t>(1, int64_t{w.hello.num_blocks} * w.hello.block_size),
          .matched_tokens = 0};
}

absl::Status WorkerDirectory::Fits(const RouteNeed& need) const {
  int64_t longest = 0;
  for (int32_t p = 0; p < static_cast<int32_t>(workers_.size()); ++p) {
    if (workers_[p].role != Role::kPrefill || !Usable(p)) continue;
    if (need.group != 0 && workers_[p].group != need.group) continue;
    if (!need.needs_decode) longest = std::max<int64_t>(longest, workers_[p].hello.max_model_len);
    for (int32_t d = 0; need.needs_decode && d < static_cast<int32_t>(workers_.size()); ++d) {
      if (workers_[d].role != Role::kDecode || !Usable(d)) continue;
      if (workers_[d].group != workers_[p].group) continue;
      longest = std::max<int64_t>(
          longest, std::min(workers_[p].hello.max_model_len, workers_[d].hello.max_model_len));
    }
  }
  if (longest == 0) {
    return absl::UnavailableError(
        need.needs_decode ? "no prefill and decode worker that fit together are connected"
                          : "no prefill worker is connected");
  }
  if (need.total_tokens > longest) {
    return absl::InvalidArgumentError(
        absl::StrFormat("prompt and max_tokens make %d tokens; the largest that fits is %d",
                        need.total_tokens, longest));
  }
  return absl::OkStatus();
}

RoutingSnapshot WorkerDirectory::Snapshot(const RouteNeed& need, int64_t max_pending_tokens,
                                          Time now) const {
  RoutingSnapshot snapshot{.prompt_tokens = need.prompt_tokens, .needs_decode = need.needs_decode};
  for (int32_t i = 0; i < static_cast<int32_t>(workers_.size()); ++i) {
    const Worker& w = workers_[i];
    if (need.group != 0 && w.group != need.group) continue;
    if (!Usable(i) || w.skip_until > now || w.hello.max_model_len < need.total_tokens) continue;
    const Candidate candidate = CandidateOf(i);
    if (w.role == Role::kPrefill) {
      const bool has_room =
          w.pending_tokens == 0 || w.pending_tokens + need.prompt_tokens <= max_pending_tokens;
      if (has_room) snapshot.prefill.push_back(candidate);
    } else if (w.role == Role::kDecode && need.needs_decode) {
      snapshot.decode.push_back(candidate);
    }
  }
  return snapshot;
}

Time WorkerDirectory::NextRetry(Time now) const {
  Time next = kNever;
  for (const Worker& w : workers_) {
    if (w.up && !w.hung && w.skip_until > now) next = std::min(next, w.skip_until);
  }
  return next;
}

}  // namespace baton
