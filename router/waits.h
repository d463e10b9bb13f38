#pragma once

#include <cstdint>
#include <optional>

#include "common/base/deadlines.h"
#include "common/base/time.h"
#include "router/node_options.h"
#include "router/sequence.h"

namespace baton {

// What sequences wait for and for how long: an answer, a verdict, the other side of one that is
// held, an event at all. One thread (the node's).
class Waits {
 public:
  // What has come for a sequence whose time is up.
  enum class Due : uint8_t { kNothing, kOverdue, kSilent };

  // `options` outlive this.
  explicit Waits(const RouterNodeOptions& options) : options_(options) {}

  // Something was heard of it.
  void Note(SequenceState& sequence, Time now) { sequence.wait.last_progress_ = now; }
  // From now on the answer or the verdict of its state is waited for.
  void Await(SequenceState& sequence, Time now);
  // What was waited for has come; only silence can end it now.
  void Clear(SequenceState& sequence);
  // It queues. What it holds is given up after a while, counted from the first such wait.
  void AwaitTurn(SequenceState& sequence, Time now);
  // It ends.
  void Forget(SequenceState& sequence) { Watch(sequence, kNever); }
  // The router stood still: as if each wait had begun just now.
  void Restart(SequenceState& sequence, Time now);

  bool Awaits(const SequenceState& sequence) const { return sequence.wait.act_by_ != kNever; }
  bool IsHeld(const SequenceState& sequence) const { return sequence.wait.hold_until_ != kNever; }

  // When somebody's time is up, and who that is, until Check puts it off or its wait changes.
  Time Next() const { return watches_.Next(); }
  std::optional<uint64_t> Expired(Time now) const { return watches_.Expired(now); }
  // A sequence may be silent while the worker that owes it an event, `moved` last, computes others.
  Due Check(SequenceState& sequence, Time moved, Time now);

 private:
  Duration LimitOf(SequenceState::State state) const;
  void Watch(SequenceState& sequence, Time at);
  void Rewatch(SequenceState& sequence);

  const RouterNodeOptions& options_;
  Deadlines<uint64_t> watches_;  // By counter.
};

}  // namespace baton
