#include "common/node/node_thread.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#include "common/base/check.h"

namespace baton {

NodeThread::NodeThread(NodeThreadOptions options) : options_(std::move(options)) {}

NodeThread::~NodeThread() { Stop(); }

Time NodeThread::Now() {
  return Time(
      std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

bool NodeThread::Offer(Message message) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_ || num_offered_ >= options_.max_offered_requests) return false;
    ++num_offered_;
    mail_.push_back({.message = std::move(message), .offered = true});
  }
  wake_.notify_one();
  return true;
}

void NodeThread::Post(Message message) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    mail_.push_back({.message = std::move(message), .offered = false});
  }
  wake_.notify_one();
}

void NodeThread::Start(Node* node, std::function<void(Time now)> after_step) {
  BATON_CHECK(!thread_.joinable());
  thread_ = std::thread([this, node, after_step = std::move(after_step)] {
    pthread_setname_np(pthread_self(), options_.name.substr(0, 15).c_str());
    Run(node, after_step);
  });
}

void NodeThread::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

bool NodeThread::WaitForMail(Time deadline, std::vector<Mail>* taken) {
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

void NodeThread::Run(Node* node, const std::function<void(Time now)>& after_step) {
  std::vector<Mail> taken;
  Time deadline = Now();  // The first Step comes at once.
  while (WaitForMail(deadline, &taken)) {
    const Time now = Now();
    for (Mail& mail : taken) {
      node->Handle(std::move(mail.message), now);
      if (mail.offered) {
        std::lock_guard lock(mutex_);
        --num_offered_;
      }
    }
    node->Step(now);
    if (after_step) after_step(now);
    deadline = node->NextDeadline();
  }
}

}  // namespace baton
