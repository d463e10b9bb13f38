#include "router/generation/answer_budget.h"

#include <algorithm>

namespace baton {

bool AnswerBudget::Share::Hold(int64_t bytes) {
  if (bytes <= 0) {
    const int64_t charged = std::min(charged_, -bytes);
    GiveBack(charged, std::min(free_, -bytes - charged));
    return true;
  }
  const int64_t free = budget_->TakeFree(free_, bytes);
  free_ += free;
  if (!Grow(bytes - free)) {
    GiveBack(0, free);
    return false;
  }
  charged_ += bytes - free;
  return true;
}

void AnswerBudget::Share::GiveBack(int64_t charged, int64_t free) {
  Grow(-charged);
  charged_ -= charged;
  budget_->GiveFree(free);
  free_ -= free;
}

bool AnswerBudget::Take(const std::string& tenant, int64_t bytes) {
  if (bytes == 0) return true;
  absl::MutexLock lock(&mutex_);
  const int64_t left = max_bytes_ - used_ - bytes;
  const auto it = tenants_.try_emplace(tenant).first;
  const bool is_taken = bytes < 0 || (left >= 0 && (tenant.empty() || it->second + bytes <= left));
  if (is_taken) {
    used_ += bytes;
    it->second += bytes;
  }
  if (it->second == 0) tenants_.erase(it);
  return is_taken;
}

int64_t AnswerBudget::TakeFree(int64_t has, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const int64_t most = std::min(Share::kFreeBytes, (kMaxFreeBytes - free_ + has) / kFreeParts);
  const int64_t taken = std::clamp<int64_t>(most - has, 0, bytes);
  free_ += taken;
  return taken;
}

void AnswerBudget::GiveFree(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  free_ -= bytes;
}

}  // namespace baton
