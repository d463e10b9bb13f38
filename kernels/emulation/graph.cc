#include "kernels/emulation/graph.h"

#include <algorithm>
#include <utility>

namespace baton::emulation {
namespace {

size_t CountOf(const Clock& clock, size_t lane) { return lane < clock.size() ? clock[lane] : 0; }

}  // namespace

size_t Graph::AddLane(int device) {
  lanes.push_back({.device = device, .seen = {}});
  return lanes.size() - 1;
}

void Graph::Put(size_t lane, WorkItem work) {
  items.push_back({.work = std::move(work), .lane = lane, .after = lanes[lane].seen});
  ++lanes[lane].count;
}

Clock Graph::Now(size_t lane) const {
  Clock clock = lanes[lane].seen;
  clock.resize(std::max(clock.size(), lane + 1));
  clock[lane] = lanes[lane].count;
  return clock;
}

void Graph::Follow(size_t lane, const Clock& clock) {
  Clock& seen = lanes[lane].seen;
  seen.resize(std::max(seen.size(), clock.size()));
  for (size_t i = 0; i < clock.size(); ++i) {
    if (i != lane) seen[i] = std::max(seen[i], clock[i]);
  }
}

bool Graph::IsJoined() const {
  for (size_t lane = 1; lane < lanes.size(); ++lane) {
    if (CountOf(lanes[0].seen, lane) < lanes[lane].count) return false;
  }
  return true;
}

bool Graph::IsLike(const Graph& other) const {
  return std::equal(items.begin(), items.end(), other.items.begin(), other.items.end(),
                    [&](const Item& a, const Item& b) {
                      return a.work.kernel == b.work.kernel &&
                             lanes[a.lane].device == other.lanes[b.lane].device;
                    });
}

}  // namespace baton::emulation
