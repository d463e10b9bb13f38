#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace baton::emulation {

inline constexpr int kMaxThreads = 3072;  // Of a cluster: actors have 12 bits.
// Of a cluster's blocks. Each is an actor beside the threads: the copies that it counts write
// memory.
inline constexpr int kMaxMbarriers = 256;

// By actor, the clock up to which something is known of it; 0 of most. Kept as far as there are
// any: few kernels have many of the threads and mbarriers that there may be.
class ActorClocks {
 public:
  bool empty() const { return threads_.empty() && copies_.empty(); }
  void clear() {
    threads_.clear();
    copies_.clear();
  }
  uint32_t operator[](int actor) const {
    return actor < kMaxThreads ? At(threads_, actor) : At(copies_, actor - kMaxThreads);
  }
  void Raise(int actor, uint32_t clock) {
    auto& part = actor < kMaxThreads ? threads_ : copies_;
    const size_t i = actor < kMaxThreads ? actor : actor - kMaxThreads;
    if (i >= part.size()) part.resize(i + 1);
    part[i] = std::max(part[i], clock);
  }
  void Raise(const ActorClocks& other) {
    Raise(threads_, other.threads_);
    Raise(copies_, other.copies_);
  }

 private:
  static uint32_t At(const std::vector<uint32_t>& part, size_t i) {
    return i < part.size() ? part[i] : 0;
  }
  static void Raise(std::vector<uint32_t>& part, const std::vector<uint32_t>& other) {
    if (part.size() < other.size()) part.resize(other.size());
    const uint32_t* const from = other.data();
    uint32_t* const to = part.data();
    for (size_t i = 0; i < other.size(); ++i) to[i] = std::max(to[i], from[i]);
  }

  std::vector<uint32_t> threads_, copies_;
};

}  // namespace baton::emulation
