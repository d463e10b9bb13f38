#pragma once

#include <utility>
#include <vector>

#include "common/node/inbox.h"

namespace baton {

// Keeps mail in order, for tests of one thread.
class MailList : public Inbox {
 public:
  bool Offer(Message message) override {
    Post(std::move(message));
    return true;
  }
  void Post(Message message) override { mail.push_back(std::move(message)); }

  std::vector<Message> mail;
};

}  // namespace baton
