#pragma once

#include <utility>
#include <vector>

#include "common/node/inbox.h"
#include "common/node/worker_mail.h"

namespace baton {

// Keeps mail in order, for tests of one thread.
class MailList : public Inbox<WorkerMail> {
 public:
  bool Offer(WorkerMail one) override {
    Post(std::move(one));
    return true;
  }
  void Post(WorkerMail one) override { mail.push_back(std::move(one)); }

  std::vector<WorkerMail> mail;
};

}  // namespace baton
