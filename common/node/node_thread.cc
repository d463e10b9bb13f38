#include "common/node/node_thread.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/this_thread.h"
#include "common/node/router_mail.h"
#include "common/node/worker_mail.h"

namespace baton {
namespace {

constexpr size_t kMostRoom = 4096;  // Pieces of mail for which there is room in a usual turn.

}  // namespace

template <typename Mail>
NodeThread<Mail>::NodeThread(NodeThreadOptions options) : options_(std::move(options)) {}

template <typename Mail>
NodeThread<Mail>::~NodeThread() { Stop(); }

template <typename Mail>
bool NodeThread<Mail>::Offer(Mail mail) {
  Lock lock(mutex_);
  if (stopped_ || num_offered_ >= options_.max_offered_requests) return false;
  ++num_offered_;
  mail_.push_back({.mail = std::move(mail), .offered = true});
  Wake(std::move(lock), /*takes_turn=*/false);
  return true;
}

template <typename Mail>
void NodeThread<Mail>::Post(Mail mail) {
  Lock lock(mutex_);
  if (stopped_) return;
  mail_.push_back({.mail = std::move(mail), .offered = false});
  Wake(std::move(lock), /*takes_turn=*/false);
}

template <typename Mail>
void NodeThread<Mail>::PostAll(std::vector<Mail> mail) {
  Lock lock(mutex_);
  if (stopped_) return;
  for (Mail& one : mail) mail_.push_back({.mail = std::move(one), .offered = false});
  Wake(std::move(lock), options_.posters_take_turns);
}

template <typename Mail>
void NodeThread<Mail>::Wake(Lock lock, bool takes_turn) {
  if (in_turn_) return;
  if (takes_turn && started_) {
    TakeTurn(lock);
    if (mail_.empty() && deadline_ >= sleeps_until_ && !stopped_) return;
  }
  lock.unlock();
  wake_.notify_one();
}

template <typename Mail>
void NodeThread<Mail>::Start(Node<Mail>* node, std::function<void(Time now)> after_step) {
  BATON_CHECK(!thread_.joinable());
  node_ = node;
  after_step_ = std::move(after_step);
  thread_ = std::thread([this] {
    NameThisThread(options_.name.c_str());
    Run();
  });
}

template <typename Mail>
void NodeThread<Mail>::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

template <typename Mail>
Duration NodeThread<Mail>::InTurnFor(Time now) const {
  return std::max(now - std::min(turn_began_.load(), now), Duration::zero());
}

template <typename Mail>
bool NodeThread<Mail>::AwaitTurn(Lock& lock) {
  while (in_turn_ || (!stopped_ && mail_.empty() && SteadyNow() < deadline_)) {
    sleeps_until_ = in_turn_ ? kNever : deadline_;
    if (sleeps_until_ == kNever) {
      wake_.wait(lock);
    } else {
      wake_.wait_until(lock,
                       std::chrono::steady_clock::time_point(sleeps_until_.time_since_epoch()));
    }
    sleeps_until_ = Time{};
  }
  return !stopped_;
}

template <typename Mail>
void NodeThread<Mail>::TakeTurn(Lock& lock) {
  in_turn_ = true;
  taken_.clear();
  taken_.swap(mail_);
  lock.unlock();
  const Time now = SteadyNow();
  turn_began_ = now;
  for (Entry& entry : taken_) {
    node_->Handle(std::move(entry.mail), now);
    if (entry.offered) {
      std::lock_guard offered(mutex_);
      --num_offered_;
    }
  }
  node_->Step(now);
  if (after_step_) after_step_(now);
  const Time deadline = node_->NextDeadline();
  turn_began_ = kNever;
  // What a flood of mail took goes when it is over, of both lists, one turn after the other.
  const bool is_over = taken_.size() < taken_.capacity() / 8;
  if (taken_.capacity() > kMostRoom && is_over) std::vector<Entry>().swap(taken_);
  lock.lock();
  deadline_ = deadline;
  in_turn_ = false;
}

template <typename Mail>
void NodeThread<Mail>::Run() {
  Lock lock(mutex_);
  started_ = true;
  while (AwaitTurn(lock)) TakeTurn(lock);
}

template class NodeThread<DecodeMail>;
template class NodeThread<PrefillMail>;
template class NodeThread<RouterMail>;

}  // namespace baton
