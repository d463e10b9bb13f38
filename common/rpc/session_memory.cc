#include "common/rpc/session_memory.h"

#include <algorithm>
#include <utility>

namespace baton {
namespace {

constexpr int64_t kParts = 4;  // Of the limit; a session has one.

}  // namespace

SessionMemory::Share::Share(std::shared_ptr<SessionMemory> memory) : memory_(std::move(memory)) {
  absl::MutexLock lock(&memory_->mutex_);
  memory_->shares_.insert(this);
}

SessionMemory::Share::~Share() {
  absl::MutexLock lock(&memory_->mutex_);
  memory_->AddTo(*this, -bytes_);
  memory_->shares_.erase(this);
}

void SessionMemory::Share::OnTooMuch(std::function<void()> end) {
  absl::MutexLock lock(&memory_->mutex_);
  end_ = std::move(end);
}

void SessionMemory::Share::Add(int64_t bytes) {
  absl::MutexLock lock(&memory_->mutex_);
  memory_->AddTo(*this, bytes);
}

bool SessionMemory::Share::Take(int64_t bytes) {
  absl::MutexLock lock(&memory_->mutex_);
  const bool fits = bytes_ == 0 || bytes_ + bytes <= memory_->limit_ / kParts;
  if (!fits || memory_->total_ + bytes > memory_->limit_) return false;
  memory_->AddTo(*this, bytes);
  return true;
}

int64_t SessionMemory::Share::bytes() const {
  absl::MutexLock lock(&memory_->mutex_);
  return bytes_;
}

bool SessionMemory::Share::IsHalfFull() const { return bytes() > memory_->limit_ / kParts / 2; }

void SessionMemory::AddTo(Share& share, int64_t bytes) {
  share.bytes_ += bytes;
  if (share.is_counted_) total_ += bytes;
}

// A session that was told to end gives its bytes back a little later: it counts no more, or another
// would end for it.
void SessionMemory::EndLargest() {
  for (;;) {
    std::function<void()> end;
    {
      absl::MutexLock lock(&mutex_);
      if (total_ <= limit_ / kParts) return;
      Share* largest = nullptr;
      for (Share* const share : shares_) {
        if (!share->is_counted_ || share->end_ == nullptr) continue;
        if (largest == nullptr || share->bytes_ > largest->bytes_) largest = share;
      }
      if (largest == nullptr) return;
      if (largest->bytes_ <= limit_ / kParts && total_ <= limit_) return;
      total_ -= largest->bytes_;
      largest->is_counted_ = false;
      end = std::exchange(largest->end_, nullptr);
    }
    end();
  }
}

std::shared_ptr<const void> HoldIn(std::shared_ptr<SessionMemory::Share> share, int64_t bytes) {
  share->Add(bytes);
  const void* const any = share.get();
  return {any, [share = std::move(share), bytes](const void*) { share->Add(-bytes); }};
}

}  // namespace baton
