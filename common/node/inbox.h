#pragma once

#include <utility>
#include <vector>

namespace baton {

// Where a node's mail is put: `Mail` is the variant of all that it is told. Thread-safe, never
// waits for the node.
template <typename Mail>
class Inbox {
 public:
  virtual ~Inbox() = default;

  // A request from outside. False, and the mail is dropped, when as many requests as the cap
  // wait already: the caller answers RESOURCE_EXHAUSTED at once.
  virtual bool Offer(Mail mail) = 0;

  // Internal mail: never refused, so whoever posts bounds its number himself. What is posted once
  // for a request, call, step or transfer that was taken is bounded by those (cancels, ends). What
  // a peer can say as often as it likes its poster counts (ARCHITECTURE.md, bounds). Dropped once
  // the node's thread has stopped.
  virtual void Post(Mail mail) = 0;

  // The same, of mail that came together: a node's thread takes it in one turn.
  virtual void PostAll(std::vector<Mail> mail) {
    for (Mail& one : mail) Post(std::move(one));
  }
};

}  // namespace baton
