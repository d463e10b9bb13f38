#pragma once

#include <utility>
#include <vector>

#include "common/node/inbox.h"
#include "common/node/worker_mail.h"

namespace baton {

// Keeps mail in order, for tests of one thread.
class MailList : public Inbox<DecodeMail> {
 public:
  bool Offer(DecodeMail one) override {
    Post(std::move(one));
    return true;
  }
  void Post(DecodeMail one) override { mail.push_back(std::move(one)); }

  std::vector<DecodeMail> mail;
};

}  // namespace baton
