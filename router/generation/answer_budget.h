#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace baton {

// Bounds what the answers of a process hold together, from their admission until their readers have
// taken them. Thread-safe.
class AnswerBudget : public std::enable_shared_from_this<AnswerBudget> {
 public:
  explicit AnswerBudget(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // What one answer has of it; given back with the last reference.
  class Share {
   public:
    explicit Share(std::shared_ptr<AnswerBudget> budget) : budget_(std::move(budget)) {}
    ~Share() { budget_->used_ -= bytes_; }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Takes more; false, and nothing taken, if that is more than there is. One thread at a time.
    bool Grow(int64_t bytes) {
      // Never beyond the limit, not even for a moment: that would refuse others.
      int64_t used = budget_->used_;
      do {
        if (bytes > 0 && used + bytes > budget_->max_bytes_) return false;
      } while (!budget_->used_.compare_exchange_weak(used, used + bytes));
      bytes_ += bytes;
      return true;
    }

   private:
    const std::shared_ptr<AnswerBudget> budget_;
    int64_t bytes_ = 0;
  };

  std::shared_ptr<Share> NewShare() { return std::make_shared<Share>(shared_from_this()); }
  int64_t used() const { return used_; }
  int64_t max_bytes() const { return max_bytes_; }

 private:
  const int64_t max_bytes_;
  std::atomic<int64_t> used_{0};
};

}  // namespace baton
