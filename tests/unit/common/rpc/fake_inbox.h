#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/node/worker_mail.h"

namespace baton {

// Keeps mail until a test takes it.
template <typename Mail>
class FakeInbox : public Inbox<Mail> {
 public:
  explicit FakeInbox(bool full = false) : full_(full) {}

  bool Offer(Mail mail) override {
    if (full_) return false;
    Post(std::move(mail));
    return true;
  }

  void Post(Mail mail) override {
    absl::MutexLock lock(&mutex_);
    mail_.push_back(std::move(mail));
  }

  void PostAll(std::vector<Mail> mail) override {
    absl::MutexLock lock(&mutex_);
    largest_post_ = std::max(largest_post_, mail.size());
    for (Mail& one : mail) mail_.push_back(std::move(one));
  }
  // Pieces of mail that were posted together, at most.
  size_t largest_post() {
    absl::MutexLock lock(&mutex_);
    return largest_post_;
  }

  // Waits for the next mail of type T, leaving other mail in place.
  template <typename T>
  std::optional<T> Next(absl::Duration wait = absl::Seconds(10)) {
    const auto there = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return Find<T>() >= 0; };
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), wait)) return std::nullopt;
    const auto it = mail_.begin() + Find<T>();
    T found = std::get<T>(std::move(*it));
    mail_.erase(it);
    return found;
  }

  template <typename T>
  int Count() {
    absl::MutexLock lock(&mutex_);
    int count = 0;
    for (const Mail& mail : mail_) count += std::holds_alternative<T>(mail) ? 1 : 0;
    return count;
  }
  // Of those before the first of type Last.
  template <typename T, typename Last>
  int CountBefore() {
    absl::MutexLock lock(&mutex_);
    int count = 0;
    for (const Mail& mail : mail_) {
      if (std::holds_alternative<Last>(mail)) break;
      count += std::holds_alternative<T>(mail) ? 1 : 0;
    }
    return count;
  }
  // Waits until there is one of type T.
  template <typename T>
  bool Await(absl::Duration wait = absl::Seconds(10)) {
    const auto there = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return Find<T>() >= 0; };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&there), wait);
  }

 private:
  template <typename T>
  int Find() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    for (size_t i = 0; i < mail_.size(); ++i) {
      if (std::holds_alternative<T>(mail_[i])) return static_cast<int>(i);
    }
    return -1;
  }

  const bool full_;
  absl::Mutex mutex_;
  std::deque<Mail> mail_ ABSL_GUARDED_BY(mutex_);
  size_t largest_post_ ABSL_GUARDED_BY(mutex_) = 0;
};

// For a worker of either kind.
class FakeWorkerInbox
    : public FakeInbox<WorkerMail<DecodeOpened, RebindAsked, PrefillOpened, SendAsked>> {
 public:
  explicit FakeWorkerInbox(bool full = false) : FakeInbox(full), decode_(this), prefill_(this) {}
  WorkerInbox Of(Role role) {
    if (role == Role::kDecode) return &decode_;
    return &prefill_;
  }

 private:
  template <typename Mail>
  struct Side : Inbox<Mail> {
    explicit Side(FakeWorkerInbox* all) : all(all) {}
    bool Offer(Mail mail) override {
      return std::visit([this](auto& one) { return all->Offer(std::move(one)); }, mail);
    }
    void Post(Mail mail) override {
      std::visit([this](auto& one) { all->Post(std::move(one)); }, mail);
    }
    FakeWorkerInbox* all;
  };
  Side<DecodeMail> decode_;
  Side<PrefillMail> prefill_;
};

}  // namespace baton
