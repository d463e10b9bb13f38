#include "common/http/http_body.h"

#include "common/base/check.h"

namespace baton::http {

BodyMeter::Room BodyMeter::Add(const std::string& client, int64_t bytes) {
  if (bytes == 0) return Room::kEnough;  // Nobody would release it.
  absl::MutexLock lock(&mutex_);
  if (bytes > max_bytes_ - total_) return Room::kServerIsFull;
  int64_t& of_client = by_client_[client];
  if (bytes > max_client_bytes_ - of_client) {
    if (of_client == 0) by_client_.erase(client);
    return Room::kClientIsFull;
  }
  of_client += bytes;
  total_ += bytes;
  return Room::kEnough;
}

void BodyMeter::Release(const std::string& client, int64_t bytes) {
  if (bytes == 0) return;
  absl::MutexLock lock(&mutex_);
  const auto it = by_client_.find(client);
  BATON_CHECK(it != by_client_.end() && it->second >= bytes);
  it->second -= bytes;
  if (it->second == 0) by_client_.erase(it);
  total_ -= bytes;
}

int64_t BodyMeter::total() const {
  absl::MutexLock lock(&mutex_);
  return total_;
}

size_t BodyMeter::num_clients() const {
  absl::MutexLock lock(&mutex_);
  return by_client_.size();
}

}  // namespace baton::http
