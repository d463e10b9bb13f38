#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/transport/nccl/batch_actions.h"
#include "common/transport/nccl/nccl_library.h"
#include "kernels/api/device.h"

namespace baton::nccl {

// NCCL's calls that may take long, or for ever: one after the other, on a thread of their own. A
// communicator is that thread's from its begin to the Result, and from Abort on.
class BlockingCalls {
 public:
  // Runs what it is given later, one after the other in the order of the calls, or never.
  using Post = std::function<void(std::function<void()> run)>;

  struct Result {
    enum class Kind : uint8_t { kMade, kAborted };
    Kind kind = Kind::kMade;
    PairId pair = 0;
    absl::Status status;
    UniqueId id;           // kMade.
    Comm* comm = nullptr;  // kMade, OK: begun.
  };

  // The device outlives this, unless a call never returns. `post` null: a thread of its own.
  BlockingCalls(std::shared_ptr<const Library> library, Device* device, Post post = nullptr);
  // Of a call that has not returned the thread is left behind.
  ~BlockingCalls();

  // A new id and its rank 0.
  void Make(PairId pair);
  // Rank 1 of another process's id.
  void Join(PairId pair, const UniqueId& id);
  void Abort(PairId pair, Comm* comm);

  // What has returned since the last time.
  std::vector<Result> Take();
  // Begun and not taken.
  bool idle() const { return begun_.empty(); }
  // The pair's call is the one that the thread is in, if it is in one: those before it are taken.
  bool IsNext(PairId pair) const { return !begun_.empty() && begun_.front() == pair; }

 private:
  struct Call {
    enum class Kind : uint8_t { kMake, kJoin, kAbort };
    Kind kind = Kind::kMake;
    PairId pair = 0;
    UniqueId id;
    Comm* comm = nullptr;
  };
  struct Shared;

  static void Run(const std::shared_ptr<Shared>& shared);
  static void RunNext(Shared& shared, std::unique_lock<std::mutex>& lock);
  static Result Do(const Shared& shared, const Call& call);
  void Add(const Call& call);

  const std::shared_ptr<Shared> shared_;
  const Post post_;
  std::deque<PairId> begun_;  // And not taken, in the order of the calls.
  std::thread thread_;
};

}  // namespace baton::nccl
