#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton {

// Bounds what the answers of a process hold together, from their admission until their readers have
// taken them. A named tenant takes no more than it leaves: however slow its readers are, there is
// as much again for others. Thread-safe.
class AnswerBudget : public std::enable_shared_from_this<AnswerBudget> {
 public:
  // Beside `max_bytes`, of all answers together: the first of what each holds for its reader.
  static constexpr int64_t kMaxFreeBytes = int64_t{128} << 20;

  explicit AnswerBudget(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // What one answer has of it; given back with the last reference.
  class Share {
   public:
    Share(std::shared_ptr<AnswerBudget> budget, std::string tenant)
        : budget_(std::move(budget)), tenant_(std::move(tenant)) {}
    ~Share() {
      budget_->Take(tenant_, -bytes_);
      budget_->GiveFree(free_);
    }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Takes more; false, and nothing taken, if that is more than there is. One thread at a time.
    bool Grow(int64_t bytes) {
      if (!budget_->Take(tenant_, bytes)) return false;
      bytes_ += bytes;
      return true;
    }

    // All that it could have if there were no other, and whether so many more would be beyond it.
    int64_t most() const {
      return tenant_.empty() ? budget_->max_bytes_ : budget_->max_bytes_ / 2;
    }
    bool IsTooMuch(int64_t more) const { return bytes_ + more > most(); }

    // What is held for its reader has grown by so many bytes, or shrunk. The first of them are of
    // the free part (TakeFree): a reader that keeps up is never told that others do not.
    static constexpr int64_t kFreeBytes = int64_t{24} << 10;
    bool Hold(int64_t bytes);

   private:
    void GiveBack(int64_t charged, int64_t free);

    const std::shared_ptr<AnswerBudget> budget_;
    const std::string tenant_;
    int64_t bytes_ = 0;
    // Held for its reader: of bytes_, and of the free part.
    int64_t charged_ = 0;
    int64_t free_ = 0;
  };

  // `tenant`: empty where clients have no keys.
  std::shared_ptr<Share> NewShare(std::string tenant = "") {
    return std::make_shared<Share>(shared_from_this(), std::move(tenant));
  }
  int64_t used() const {
    absl::MutexLock lock(&mutex_);
    return used_;
  }
  int64_t free_used() const {
    absl::MutexLock lock(&mutex_);
    return free_;
  }

 private:
  bool Take(const std::string& tenant, int64_t bytes);

  // How much of `bytes` is of the free part, for an answer that has so much of it. None has more
  // than a part of what is left: however many hold all that they may, there is some for one more,
  // which a reader that keeps up does not exceed.
  int64_t TakeFree(int64_t has, int64_t bytes);
  void GiveFree(int64_t bytes);

  static constexpr int64_t kFreeParts = 4096;

  const int64_t max_bytes_;
  mutable absl::Mutex mutex_;
  int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t free_ ABSL_GUARDED_BY(mutex_) = 0;                        // Taken of the free part.
  std::map<std::string, int64_t> tenants_ ABSL_GUARDED_BY(mutex_);  // Of it, those that have any.
};

}  // namespace baton
