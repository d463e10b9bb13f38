#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/base/time.h"
#include "common/node/inbox.h"
#include "common/node/node.h"

namespace baton {

// A node whose turn takes longer stands still, and its process is not alive any more.
inline constexpr Duration kMostTurn = std::chrono::minutes(1);

struct NodeThreadOptions {
  std::string name = "node";           // Of the thread, as debuggers show it; 15 bytes.
  size_t max_offered_requests = 1024;  // Offered and not yet handled; more are refused.
  // Whoever posts what came together (PostAll) takes a turn of the node, if nobody is in one,
  // instead of waking the thread for it: so it holds no lock that a turn may want, and has time.
  bool posters_take_turns = false;
};

// Drives a node in production: one thread takes all mail, calls Handle for each piece, then Step,
// then `after_step`, and sleeps until mail or the node's deadline. Mail that arrives before Start
// waits. The node is touched by this thread only, or one at a time (`posters_take_turns`), between
// Start and Stop. Of DecodeMail, PrefillMail and RouterMail (node_thread.cc).
template <typename Mail>
class NodeThread : public Inbox<Mail> {
 public:
  explicit NodeThread(NodeThreadOptions options);
  ~NodeThread() override;  // Stops.

  bool Offer(Mail mail) override;
  void Post(Mail mail) override;
  void PostAll(std::vector<Mail> mail) override;

  // Runs `node`, which must outlive Stop. `after_step` runs on the thread after each Step, to
  // publish a snapshot; it may be empty. Call once.
  void Start(Node<Mail>* node, std::function<void(Time now)> after_step);

  // How long the node has been at its mail and step by now; zero while it waits. Any thread.
  Duration InTurnFor(Time now) const;

  // Handles the mail taken so far, drops the rest and joins. Idempotent. From any thread but the
  // node's own.
  void Stop();

 private:
  struct Entry {
    Mail mail;
    bool offered = false;
  };

  using Lock = std::unique_lock<std::mutex>;

  void Run();
  // Of mail that was put in.
  void Wake(Lock lock, bool takes_turn);
  // Sleeps until mail, the deadline or Stop, and nobody is in a turn; false when stopped.
  bool AwaitTurn(Lock& lock);
  // Unlocks meanwhile.
  void TakeTurn(Lock& lock);

  const NodeThreadOptions options_;
  Node<Mail>* node_ = nullptr;                // Since Start.
  std::function<void(Time now)> after_step_;  // Likewise.
  std::vector<Entry> taken_;                  // Of whoever is in a turn.
  // Standard ones, not Abseil's: the thread sanitizer sees through them.
  std::mutex mutex_;  // Guards the next seven.
  std::vector<Entry> mail_;
  size_t num_offered_ = 0;
  bool started_ = false;
  bool stopped_ = false;
  bool in_turn_ = false;        // A thread is, and looks for more mail when it is over.
  Time deadline_{};             // The first Step comes at once.
  Time sleeps_until_ = Time{};  // The thread, unless it is woken.
  std::condition_variable wake_;
  std::atomic<Time> turn_began_{kNever};
  std::thread thread_;
};

}  // namespace baton
