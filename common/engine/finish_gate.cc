#include "common/engine/finish_gate.h"

#include <algorithm>
#include <map>
#include <vector>

#include "common/base/check.h"

namespace baton {

bool FinishGate::CanWait(const Sequence& sequence, int32_t budget, Time now) {
  return now < sequence.wait_until &&
         sequence.num_waited + budget <= kMostWaited * sequence.num_own;
}

FinishGate::Calls FinishGate::Waiting(const SequencesByAge& running, int32_t budget,
                                      Time now) const {
  struct Group {
    std::vector<CallId> calls;
    int32_t num_finishing = 0;  // In this step, with so many tokens.
    int64_t num_tokens = 0;
    bool has_more = false;  // Than last tokens.
    bool must_finish = false;
  };
  std::map<uint64_t, Group> groups;
  // Whose last token alone is left finishes first.
  for (const bool waits : {true, false}) {
    for (const auto& [key, sequence] : running) {
      if (sequence->finish_group == 0 || waits != (sequence->num_remaining() == 1)) continue;
      const bool can_wait = CanWait(*sequence, budget, now);
      if (!can_wait && sequence->num_waited == 0) continue;  // For it there is nobody to wait.
      Group& group = groups[sequence->finish_group];
      group.calls.push_back(sequence->call);
      group.num_tokens += sequence->num_remaining();
      if (group.num_tokens <= budget) ++group.num_finishing;
      if (!waits) group.has_more = true;
      if (!can_wait) group.must_finish = true;
    }
  }
  Calls waiting;
  for (const auto& [id, group] : groups) {
    const int32_t size = static_cast<int32_t>(group.calls.size());
    const bool enough = group.num_finishing >= std::min(together_, size);
    if (group.has_more && !enough && !group.must_finish) {
      waiting.insert(group.calls.begin(), group.calls.end());
    }
  }
  return waiting;
}

void FinishGate::Count(const SequencesByAge& running, const Calls& waiting, int64_t num_tokens) {
  for (const auto& [key, sequence] : running) {
    if (sequence->num_remaining() > 1 || !waiting.contains(sequence->call)) continue;
    BATON_CHECK(sequence->finish_group != 0 && sequence->num_own > 0);
    sequence->num_waited += num_tokens;
  }
}

}  // namespace baton
