#pragma once

#include "common/node/message.h"

namespace baton {

// Where a node's mail is put. Thread-safe, never waits for the node.
class Inbox {
 public:
  virtual ~Inbox() = default;

  // A request from outside. False, and the message is dropped, when as many requests as the cap
  // wait already: the caller answers RESOURCE_EXHAUSTED at once.
  virtual bool Offer(Message message) = 0;

  // Internal mail (done, closed, cancel, transfer events): never refused, because its number is
  // bounded by the requests that were taken. Dropped once the node's thread has stopped.
  virtual void Post(Message message) = 0;
};

}  // namespace baton
