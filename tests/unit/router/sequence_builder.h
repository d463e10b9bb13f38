#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "router/sequence.h"
#include "router/tenant_counters.h"

namespace baton {

// Sequences without a node.
class SequenceBuilder {
 public:
  // Of a request of its own with one prompt, and of the tenant "".
  SequenceState& New(int32_t priority = 0, int32_t prompt_length = 3) {
    return Of(Tenant(""), priority, prompt_length);
  }
  SequenceState& Of(const TenantAccount& account, int32_t priority = 0,
                    int32_t prompt_length = 3) {
    ValidRequest& body = bodies_.emplace_back();
    body.tenant = account.name;
    body.prompts = {std::vector<int32_t>(prompt_length, 7)};
    body.sampling.max_tokens = 4;
    body.priority = priority;
    SequenceState& sequence = sequences_.emplace_back();
    sequence.body = &body;
    sequence.account = &account;
    sequence.id = {1, sequences_.size()};
    sequence.request = sequences_.size();
    return sequence;
  }
  // Of the sequence with this counter.
  TenantAccount& AccountOf(uint64_t counter) {
    return const_cast<TenantAccount&>(*sequences_[counter - 1].account);
  }
  TenantAccount& Tenant(const std::string& name, int32_t weight = 1) {
    return counters.Join(name, weight);
  }

  TenantCounters counters;

 private:
  std::deque<ValidRequest> bodies_;
  std::deque<SequenceState> sequences_;
};

}  // namespace baton
