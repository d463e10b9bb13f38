#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/base/time.h"
#include "common/transport/nccl/batch_actions.h"
#include "common/transport/nccl/blocking_calls.h"
#include "common/transport/nccl/nccl_library.h"
#include "kernels/api/device.h"

namespace baton::nccl {

// The communicators of a rank, a pair each, and what they have on the lane kExchange. A pair is
// made, is up, and is killed; its owner kills it when it fails. One thread.
class Communicators {
 public:
  struct Event {
    enum class Kind : uint8_t {
      kMade,  // Of Make: its id, for the peer.
      kUp,
      kFailed,   // Or was not there in time: to be killed.
      kBegun,    // Of a pair's first operation alone, which waits for the peer's to be connected.
      kIssued,   // The operation is on the lane; or never will be, as its pair was killed.
      kEnded,    // It is behind what is known to be done of the lane.
      kAborted,  // After Kill: NCCL touches nothing of the pair any more.
      kStuck,    // Instead: it may for ever.
    };
    Kind kind = Kind::kUp;
    PairId pair = 0;
    BatchKey key;         // kBegun, kIssued, kEnded.
    UniqueId id;          // kMade.
    absl::Status status;  // kFailed.
  };

  struct Options {
    Duration init_limit = std::chrono::seconds(10);
    Duration abort_limit = std::chrono::seconds(2);
    BlockingCalls::Post post;  // Of calls that may take long; null: a thread.
  };

  using OnLost = std::function<void(const absl::Status&)>;

  // The device outlives this. `on_lost` ends the process.
  Communicators(std::shared_ptr<const Library> library, Device& device, const Options& options,
                OnLost on_lost);

  void Make(PairId pair);
  void Join(PairId pair, const UniqueId& id);
  // Of a pair that is up: receives what was made here, sends what was joined. In the order of the
  // calls.
  void Exchange(BatchKey key, std::byte* data, int64_t bytes);
  // No operation of it that is not on the lane by now will be.
  void Kill(PairId pair);

  // What has happened. `running`: how long this process has run since the last time.
  std::vector<Event> Turn(Duration running);

  // Operations are under way: their end is near, or the peer's deadline.
  bool busy() const { return !stuck_ && (!issued_.empty() || num_pending_ > 0); }
  // A state is to be asked for again in some milliseconds.
  bool waits() const { return num_unsettled_ > 0 || (!calls_.idle() && !stuck_); }
  // A call has not returned in time. There are no new pairs.
  bool stuck() const { return stuck_; }
  int size() const { return static_cast<int>(pairs_.size()); }

 private:
  struct Operation {
    BatchKey key;
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  struct Issued {
    Operation operation;
    Mark mark;
  };
  enum class State : uint8_t { kMaking, kJoining, kUp, kKilled };
  struct Pair {
    State state = State::kMaking;
    bool receives = false;
    bool is_failed = false;  // Said so.
    bool in_call = true;     // Of calls_, whose result comes.
    Comm* comm = nullptr;    // Ours, while not in a call.
    Duration waited{};     // For what the state says.
    std::deque<Operation> pending;  // The first may be in NCCL's hands already.
    bool is_begun = false;          // It is.
    bool was_begun = false;         // Its first one has been.
    int num_issued = 0;             // On the lane.
  };

  using Pairs = std::map<PairId, Pair>;

  Pairs::iterator Forget(Pairs::iterator it, std::vector<Event>* out);
  void OnResult(const BlockingCalls::Result& result, std::vector<Event>* out);
  void Ask(PairId id, Pair* pair, std::vector<Event>* out);
  void Begin(PairId id, Pair* pair, std::vector<Event>* out);
  void Fail(PairId id, Pair* pair, absl::Status status, std::vector<Event>* out);
  void Issue(const Operation& operation, std::vector<Event>* out);
  void CollectIssued(std::vector<Event>* out);
  Pairs::iterator Wait(Pairs::iterator it, Duration running, std::vector<Event>* out);
  void CheckDevice(const absl::Status& status) const;

  const std::shared_ptr<const Library> library_;
  Device& device_;
  const Options options_;
  const OnLost on_lost_;
  BlockingCalls calls_;
  Pairs pairs_;
  std::deque<Issued> issued_;  // The lane keeps their order.
  int num_pending_ = 0;
  int num_unsettled_ = 0;  // Pairs that are neither up nor gone.
  bool stuck_ = false;
};

}  // namespace baton::nccl
