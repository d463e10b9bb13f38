// Of DecodeNode: an answer whose session ended is kept for the time in which it may return.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "decode_worker/node.h"

namespace baton {

// All else goes the usual way: what of it is sealed stays findable. With a newer call of the
// sequence it has returned already.
bool DecodeNode::MayPark(const Entry& entry) const {
  return !draining_ && entry.state == State::kRunning && engine_.Decodes(entry.call) &&
         !calls_.HasSibling(entry);
}

void DecodeNode::OnBroken(const CallBroken& broken, Time now) {
  Entry* entry = calls_.FindLive(broken.call);
  if (entry == nullptr || !broken.session_ended || !MayPark(*entry)) return On(broken, now);
  ++counters_.parked;
  calls_.Retire(*entry);
  entry->sequence = engine_.Remove(entry->call);
  if (entry->in_engine() || entry->sequence->blocks.size() > 0) return Park(*entry, now);
  // It had its blocks from one that a step still computes.
  Entry& before = calls_.at(entry->sequence->in_place_of);
  entry->state = State::kEnding;
  EraseIfQuiet(*entry);
  Park(before, now);
}

void DecodeNode::Park(Entry& entry, Time now) {
  entry.state = State::kParked;
  entry.parked_until = now + options_.park_limit;
  BATON_CHECK(parked_.emplace(entry.age.id, entry.call).second);
  parked_limits_.Set(entry.call, entry.parked_until);
  CheckHeld(entry);
}

// What the steps computed of it meanwhile is computed once more, in its next step.
void DecodeNode::Settle(Entry& entry) {
  allocator_.Revive(entry.sequence->blocks);
  CheckHeld(entry);
}

const Sequence& DecodeNode::SequenceOf(const Entry& parked) const {
  return parked.in_engine() ? engine_.removed(parked.call) : *parked.sequence;
}

// It is told again what it lacks, so that of the blocks nothing is to be taken back.
bool DecodeNode::GoesOnFrom(const Entry& parked, const DecodeRequest& request) const {
  const Sequence& sequence = SequenceOf(parked);
  const int64_t lacks = int64_t{sequence.num_tokens()} - std::ssize(request.tokens);
  if (lacks < 0 || lacks > std::ssize(parked.told)) return false;
  SamplingParams params = request.sampling;
  // Those of its prompt were told, or are sought elsewhere.
  params.num_prompt_logprobs = sequence.sampling->params.num_prompt_logprobs;
  return request.tenant == sequence.tenant && request.prompt_length == sequence.prompt_length &&
         params == sequence.sampling->params &&
         std::equal(request.tokens.begin(), request.tokens.end(), sequence.tokens.begin());
}

// It needs no block, so it goes on beside younger ones that wait for some, as it had. Behind an
// older one it stays: that takes its blocks as soon as no step touches them.
DecodeEntry* DecodeNode::FindParked(const DecodeRequest& request) {
  if (request.prefill != 0 || request.compute_prompt) return nullptr;
  const auto it = parked_.find(request.sequence);
  if (it == parked_.end()) return nullptr;
  Entry& entry = calls_.at(it->second);
  if (engine_.WaitsBefore(entry.age)) return nullptr;
  return GoesOnFrom(entry, request) ? &entry : nullptr;
}

// Amid a step, too: no other starts before that has ended.
void DecodeNode::Resume(Entry& parked, DecodeOpened opened, Time now) {
  DecodeRequest& request = opened.request;
  ++counters_.calls;
  ++counters_.returned;
  ++counters_.resumed;
  const Sequence& before = SequenceOf(parked);
  const auto num_known = static_cast<int32_t>(request.tokens.size());
  const int32_t num_computed = before.num_computed;
  request.tokens = before.tokens;
  counters_.prompt_tokens += before.num_tokens();
  counters_.cached_tokens += num_computed;

  const std::vector<TokenOutput> told = parked.told;
  const CallId in_place_of = parked.call;
  BlockTable blocks =
      parked.in_engine() ? engine_.TakeOver(in_place_of) : std::move(parked.sequence->blocks);
  Unpark(parked);
  Entry& entry = calls_.Open(opened.call, request, now);
  entry.sequence->num_computed = num_computed;
  entry.sequence->in_place_of = in_place_of;
  entry.sequence->blocks = std::move(blocks);
  Run(entry, /*computes_prompt=*/false);
  for (const TokenOutput& output : told) {
    if (output.position >= num_known) EmitToken(entry, output);
  }
}

void DecodeNode::Unpark(Entry& entry) {
  BATON_CHECK(parked_.erase(entry.age.id) == 1);
  parked_limits_.Clear(entry.call, entry.parked_until);
  entry.state = State::kEnding;
  EraseIfQuiet(entry);
}

void DecodeNode::UnparkOf(const SequenceId& sequence) {
  const auto it = parked_.find(sequence);
  if (it != parked_.end()) Unpark(calls_.at(it->second));
}

bool DecodeNode::ReclaimParked() {
  const int32_t available = allocator_.num_available();
  while (allocator_.num_available() == available) {
    Entry* youngest = nullptr;
    for (const auto& [sequence, call] : parked_) {
      Entry& entry = calls_.at(call);
      if (entry.in_engine()) continue;
      if (youngest == nullptr || youngest->age < entry.age) youngest = &entry;
    }
    if (youngest == nullptr) return false;
    Unpark(*youngest);
  }
  return true;
}

WorkerStatus DecodeNode::Status() const {
  WorkerStatus status = WorkerNode::Status();
  std::vector<const BlockTable*> tables;
  for (const auto& [sequence, call] : parked_) {
    const Entry& entry = calls_.at(call);
    if (!entry.in_engine()) tables.push_back(&entry.sequence->blocks);
  }
  if (tables.empty()) return status;
  status.blocks = allocator_.CountsWithout(tables);
  status.waiting -= static_cast<int32_t>(tables.size());
  return status;
}

}  // namespace baton
