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
};

// Drives a node in production: one thread takes all mail, calls Handle for each piece, then Step,
// then `after_step`, and sleeps until mail or the node's deadline. Mail that arrives before Start
// waits. The node is touched by this thread only, between Start and Stop. Of DecodeMail,
// PrefillMail and RouterMail (node_thread.cc).
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

  void Run(Node<Mail>* node, const std::function<void(Time now)>& after_step);
  // Waits for mail, `deadline` or Stop; false when stopped. Moves all mail into `taken`.
  bool WaitForMail(Time deadline, std::vector<Entry>* taken);

  const NodeThreadOptions options_;
  // Standard ones, not Abseil's: the thread sanitizer sees through them.
  std::mutex mutex_;  // Guards the next three.
  std::vector<Entry> mail_;
  size_t num_offered_ = 0;
  bool stopped_ = false;
  std::condition_variable wake_;
  std::atomic<Time> turn_began_{kNever};
  std::thread thread_;
};

}  // namespace baton
