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
  {
    std::lock_guard lock(mutex_);
    if (stopped_ || num_offered_ >= options_.max_offered_requests) return false;
    ++num_offered_;
    mail_.push_back({.mail = std::move(mail), .offered = true});
  }
  wake_.notify_one();
  return true;
}

template <typename Mail>
void NodeThread<Mail>::Post(Mail mail) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    mail_.push_back({.mail = std::move(mail), .offered = false});
  }
  wake_.notify_one();
}

template <typename Mail>
void NodeThread<Mail>::PostAll(std::vector<Mail> mail) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    for (Mail& one : mail) mail_.push_back({.mail = std::move(one), .offered = false});
  }
  wake_.notify_one();
}

template <typename Mail>
void NodeThread<Mail>::Start(Node<Mail>* node, std::function<void(Time now)> after_step) {
  BATON_CHECK(!thread_.joinable());
  thread_ = std::thread([this, node, after_step = std::move(after_step)] {
    NameThisThread(options_.name.c_str());
    Run(node, after_step);
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
bool NodeThread<Mail>::WaitForMail(Time deadline, std::vector<Entry>* taken) {
  // What a flood of mail took goes when it is over, of both lists, one turn after the other.
  const bool is_over = taken->size() < taken->capacity() / 8;
  if (taken->capacity() > kMostRoom && is_over) std::vector<Entry>().swap(*taken);
  const auto ready = [this] { return stopped_ || !mail_.empty(); };
  std::unique_lock lock(mutex_);
  if (deadline == kNever) {
    wake_.wait(lock, ready);
  } else {
    wake_.wait_until(lock, std::chrono::steady_clock::time_point(deadline.time_since_epoch()),
                     ready);
  }
  taken->clear();
  taken->swap(mail_);
  return !stopped_;
}

template <typename Mail>
void NodeThread<Mail>::Run(Node<Mail>* node, const std::function<void(Time now)>& after_step) {
  std::vector<Entry> taken;
  Time deadline = SteadyNow();  // The first Step comes at once.
  while (WaitForMail(deadline, &taken)) {
    const Time now = SteadyNow();
    turn_began_ = now;
    for (Entry& entry : taken) {
      node->Handle(std::move(entry.mail), now);
      if (entry.offered) {
        std::lock_guard lock(mutex_);
        --num_offered_;
      }
    }
    node->Step(now);
    if (after_step) after_step(now);
    deadline = node->NextDeadline();
    turn_began_ = kNever;
  }
}

template class NodeThread<DecodeMail>;
template class NodeThread<PrefillMail>;
template class NodeThread<RouterMail>;

}  // namespace baton
