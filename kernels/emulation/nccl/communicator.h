#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/random.h"
#include "kernels/emulation/nccl/channel.h"
#include "kernels/emulation/nccl/nccl_types.h"

namespace baton::emulation::nccl {

// An ncclSend or ncclRecv.
struct Operation {
  bool sends = false;
  uint64_t bytes = 0;
  std::byte* data = nullptr;
  bool done = false;
};

// What one rank of two has of a communicator. Its own thread finds the other rank and moves bytes;
// the device's thread is in RunWork. A work keeps its stream until each of its operations has met
// its counterpart, or the communicator is aborted: errors alone do not end it.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  Communicator(const ncclUniqueId& id, int rank, int device);
  ~Communicator();

  int rank() const { return rank_; }
  // Begins to look for the other rank.
  void Start();

  // ncclInProgress until both are there and what was enqueued is on its stream.
  ncclResult_t State();
  // The same, and a question that brings nothing nearer to its stream.
  ncclResult_t StateNow();
  std::string last_error();

  // A group, or one call outside of it. It reaches the stream now or at a later question for the
  // state, as the seed draws.
  ncclResult_t Enqueue(std::vector<Operation> operations, void* stream);

  // What it has on streams ends without touching any memory from now on.
  void Abort();

  // One of these at a time, and another one's name if there are two.
  const char* Enter(const char* call) { return inside_.exchange(call); }
  void Leave() { inside_ = nullptr; }

 private:
  struct Work {
    std::vector<Operation> operations;
    int64_t number = 0;  // Of the process's.
    int64_t turn = 0;    // Of this communicator's.
    bool begun = false;
  };
  // What the stream holds.
  struct Launch {
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<Work> work;
  };

  // The thread.
  void Run();
  // Null: it has failed, or was aborted.
  Channel* FindPeer();
  void OnMessage(Message message);

  ncclResult_t Put(std::shared_ptr<Work> work, void* stream);
  // 0: ended, 1: not yet, 2: the device is lost.
  int RunWork(Work& work);

  // With mutex_ held:
  bool Begin(Work& work);
  bool Receive(Work& work);
  void EndTheirs(bool sends);
  // Fails if the ranks' next calls do not fit, or wait for each other for ever. Both ranks see it,
  // for each announces a work when it begins.
  void Compare();
  std::string Name(bool ours, const Operation& operation) const;
  void Fail(ncclResult_t error, const std::string& text);

  const ncclUniqueId id_;
  const int rank_;
  const int device_;
  std::atomic<const char*> inside_ = nullptr;
  std::thread thread_;

  std::mutex mutex_;
  Random random_;
  ncclResult_t state_ = ncclInProgress;
  std::string error_;
  bool aborted_ = false;
  int place_ = -1;  // While it waits there.
  std::unique_ptr<Channel> channel_;
  std::shared_ptr<Work> pending_;  // Has not reached its stream.
  void* pending_stream_ = nullptr;
  int questions_ = 0;  // Until it does.
  bool peer_connects_ = false;  // The other rank has called ncclSend or ncclRecv.
  int64_t turns_ = 0;
  int64_t turn_ = 0;      // Whose turn it is.
  Work* ours_ = nullptr;  // Begun and not ended.
  std::deque<std::vector<Operation>> theirs_;  // Works of the other rank that have not ended.
  std::deque<std::vector<std::byte>> arrived_;
};

}  // namespace baton::emulation::nccl
