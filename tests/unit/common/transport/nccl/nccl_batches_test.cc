#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/transport/nccl/receiving_batches.h"
#include "common/transport/nccl/sending_batches.h"
#include "tests/unit/common/transport/nccl/batch_words.h"

// Prefill and decode ranks with modelled links, slots, streams and NCCL. A seed draws which event
// comes next, which pairs die when, and whether their aborts return. What a slot holds is a number:
// who touches a slot that is another's spoils the number, and the sums show it.
namespace baton::nccl {
namespace {

constexpr int kFrames = 3;
constexpr uint64_t kGarbage = ~uint64_t{0};

class World {
 public:
  struct Plan {
    uint64_t seed = 0;
    int prefills = 2, decodes = 2;
    int slots = 2;
    int batches = 6;       // Of each pair.
    bool faults = false;
  };

  explicit World(const Plan& plan) : plan_(plan), random_(plan.seed) {
    for (int p = 0; p < plan.prefills; ++p) prefills_.emplace_back(plan.slots);
    for (int d = 0; d < plan.decodes; ++d) decodes_.emplace_back(plan.slots);
    for (int p = 0; p < plan.prefills; ++p) {
      for (int d = 0; d < plan.decodes; ++d) {
        const PairId id = static_cast<PairId>(pairs_.size());
        pairs_.push_back({.prefill = p, .decode = d, .to_do = plan.batches});
        prefills_[p].batches.AddPair(id);
        decodes_[d].batches.AddPair(id);
      }
    }
  }

  void Run() {
    for (int steps = 0; steps < 100'000; ++steps) {
      std::vector<Event> events = Possible();
      if (events.empty()) return;
      Do(events[Draw(events.size())]);
      if (HasFailure()) return;
    }
    Violation("it never comes to rest");
  }

  // Everything has ended, and every slot is free or leaked for a reason.
  void CheckRest() {
    for (size_t id = 0; id < pairs_.size(); ++id) {
      const Pair& pair = pairs_[id];
      if (pair.alive) {
        EXPECT_EQ(pair.arrived + pair.refused, plan_.batches) << Where() << "pair " << id;
      }
      EXPECT_EQ(pair.arrived + pair.refused + pair.lost + pair.to_do, plan_.batches) << Where();
    }
    for (const Side<SendingBatches>& side : prefills_) CheckSlots(side);
    for (const Side<ReceivingBatches>& side : decodes_) CheckSlots(side);
  }

  int arrived() const { return Sum(&Pair::arrived); }
  int leaked() const {
    int count = 0;
    for (const auto& side : prefills_) count += side.batches.slots().leaked();
    for (const auto& side : decodes_) count += side.batches.slots().leaked();
    return count;
  }
  int revoked() const { return revoked_; }
  int spoiled() const { return spoiled_; }

 private:
  enum class What : uint8_t {
    kAnnounce, kWordToDecode, kWordToPrefill, kGathered, kSent, kReceived, kSummed, kScattered,
    kRevoke, kDrop, kDie, kPeerHears, kAborted, kStuck,
  };
  struct Event {
    What what;
    PairId pair = 0;
    BatchKey key;
    bool at_decode = false;
  };
  struct Pair {
    int prefill = 0, decode = 0;
    int to_do = 0, arrived = 0, refused = 0, lost = 0;
    int revokes = 5;  // A grant that is always taken back at once never serves.
    bool alive = true;
    bool dead[2] = {false, false};     // Prefill, decode.
    bool settled[2] = {false, false};  // The abort returned, or is given up.
    bool stuck[2] = {false, false};
    std::deque<Action> to_decode, to_prefill;
    std::deque<BatchKey> sends, receives;  // Posted and not matched, in the order of the calls.
    std::map<uint64_t, FrameSet> committed;
  };
  template <typename Batches>
  struct Side {
    explicit Side(int slots) : batches(slots), contents(slots, 0) {}
    Batches batches;
    std::vector<uint64_t> contents;
    std::map<BatchKey, int> gathers, sums, scatters;
    std::map<BatchKey, FrameSet> scatter_frames;
    std::map<BatchKey, int> in_nccl;  // Slots of messages whose event is not done.
    std::set<BatchKey> matched;       // Their bytes have crossed.
    std::map<int, BatchKey> stuck;    // Slots that NCCL may touch for ever.
  };

  static uint64_t Content(BatchKey key) { return key.pair * 1000 + key.batch; }
  static std::vector<uint64_t> SumsOf(uint64_t content) {
    std::vector<uint64_t> sums;
    for (uint64_t i = 0; i < kFrames; ++i) sums.push_back(content * 16 + i);
    return sums;
  }
  std::string Where() const { return "seed " + std::to_string(plan_.seed) + ": "; }
  void Violation(const std::string& text) { ADD_FAILURE() << Where() << text; }
  static bool HasFailure() { return testing::Test::HasFailure(); }
  size_t Draw(size_t n) { return random_() % n; }
  int Sum(int Pair::*field) const {
    int sum = 0;
    for (const Pair& pair : pairs_) sum += pair.*field;
    return sum;
  }
  template <typename Batches>
  void CheckSlots(const Side<Batches>& side) {
    const StagingSlots& slots = side.batches.slots();
    EXPECT_EQ(slots.free() + slots.leaked(), slots.size()) << Where() << "a slot is held";
    EXPECT_GE(slots.leaked(), static_cast<int>(side.stuck.size())) << Where();
  }

  Side<SendingBatches>& PrefillOf(PairId id) { return prefills_[pairs_[id].prefill]; }
  Side<ReceivingBatches>& DecodeOf(PairId id) { return decodes_[pairs_[id].decode]; }

  std::vector<Event> Possible() {
    std::vector<Event> events;
    for (PairId id = 0; id < static_cast<PairId>(pairs_.size()); ++id) OfPair(id, &events);
    const bool only_faults = std::none_of(events.begin(), events.end(), [](const Event& e) {
      return e.what < What::kRevoke || e.what >= What::kPeerHears;
    });
    // Nothing else is left to come: a healthy world is at rest.
    if (only_faults) return {};
    return events;
  }

  void OfPair(PairId id, std::vector<Event>* events) {
    Pair& pair = pairs_[id];
    const auto add = [&](What what, BatchKey key = {}, bool at_decode = false) {
      events->push_back({what, id, key, at_decode});
    };
    auto& prefill = PrefillOf(id);
    auto& decode = DecodeOf(id);
    if (pair.to_do > 0 && prefill.batches.CanAnnounce(id)) add(What::kAnnounce);
    if (!pair.to_decode.empty()) add(What::kWordToDecode);
    if (!pair.to_prefill.empty()) add(What::kWordToPrefill);
    const auto each = [&](const std::map<BatchKey, int>& of, What what) {
      for (const auto& [key, slot] : of) {
        if (key.pair == id) add(what, key);
      }
    };
    each(prefill.gathers, What::kGathered);
    each(decode.sums, What::kSummed);
    each(decode.scatters, What::kScattered);
    for (const auto& [key, slot] : prefill.in_nccl) {
      if (key.pair == id && IsDone(pair, prefill.matched, key, 0)) add(What::kSent, key);
    }
    for (const auto& [key, slot] : decode.in_nccl) {
      if (key.pair == id && IsDone(pair, decode.matched, key, 1)) add(What::kReceived, key);
    }
    OfFaults(id, events);
  }

  // An event of a message comes when its bytes have crossed, or its communicator is aborted.
  static bool IsDone(const Pair& pair, const std::set<BatchKey>& matched, BatchKey key, int side) {
    return matched.contains(key) || (pair.settled[side] && !pair.stuck[side]);
  }

  void OfFaults(PairId id, std::vector<Event>* events) {
    Pair& pair = pairs_[id];
    const auto add = [&](What what, bool at_decode) {
      events->push_back({what, id, {}, at_decode});
    };
    if (pair.alive && pair.revokes > 0 && granted_.contains(id)) add(What::kRevoke, true);
    for (int side = 0; side < 2; ++side) {
      if (pair.dead[side] && !pair.settled[side]) {
        add(What::kAborted, side == 1);
        if (plan_.faults) add(What::kStuck, side == 1);
      }
    }
    if (pair.dead[0] != pair.dead[1]) add(What::kPeerHears, pair.dead[0]);
    if (!plan_.faults) return;
    if (pair.alive && Draw(40) == 0) add(What::kDie, Draw(2) == 1);
    if (pair.alive && decides_.contains(id) && Draw(10) == 0) add(What::kDrop, true);
  }

  void Do(const Event& event) {
    switch (event.what) {
      case What::kAnnounce: return DoAnnounce(event.pair);
      case What::kWordToDecode: return DoWordToDecode(event.pair);
      case What::kWordToPrefill: return DoWordToPrefill(event.pair);
      case What::kGathered: return DoGathered(event.key);
      case What::kSent: return DoSent(event.key);
      case What::kReceived: return DoReceived(event.key);
      case What::kSummed: return DoSummed(event.key);
      case What::kScattered: return DoScattered(event.key);
      case What::kRevoke: return DoRevoke(event.pair);
      case What::kDrop: return DoDrop(event.pair);
      case What::kDie: return Kill(event.pair, event.at_decode ? 1 : 0);
      case What::kPeerHears: return Kill(event.pair, event.at_decode ? 1 : 0);
      case What::kAborted: return DoAbort(event.pair, event.at_decode ? 1 : 0, false);
      case What::kStuck: return DoAbort(event.pair, event.at_decode ? 1 : 0, true);
    }
  }

  void DoAnnounce(PairId id) {
    --pairs_[id].to_do;
    AtPrefill(id, PrefillOf(id).batches.Announce(id, kFrames));
  }

  void DoWordToDecode(PairId id) {
    const Action word = pairs_[id].to_decode.front();
    pairs_[id].to_decode.pop_front();
    ReceivingBatches& batches = DecodeOf(id).batches;
    if (word.kind == Kind::kAnnounce) {
      FrameSet live = FirstFrames(kFrames);
      if (Draw(8) == 0) live.reset(0);
      if (Draw(16) == 0) live.reset();
      live_[word.key] = live;
      decides_[id] = word.key;
      AtDecode(id, batches.OnAnnounce(word.key, kFrames, live));
    } else {
      AtDecode(id, batches.OnReady(word.key, word.grant, word.sums));
    }
  }

  void DoWordToPrefill(PairId id) {
    const Action word = pairs_[id].to_prefill.front();
    pairs_[id].to_prefill.pop_front();
    SendingBatches& batches = PrefillOf(id).batches;
    switch (word.kind) {
      case Kind::kGrant: return AtPrefill(id, batches.OnGrant(word.key, word.grant));
      case Kind::kRevoke: return AtPrefill(id, batches.OnRevoke(word.key, word.grant));
      case Kind::kPosted: return AtPrefill(id, batches.OnPosted(word.key, word.grant));
      case Kind::kRefuse: return AtPrefill(id, batches.OnRefuse(word.key));
      default: return AtPrefill(id, batches.OnAck(word.key, word.frames));
    }
  }

  void DoGathered(BatchKey key) {
    auto& side = PrefillOf(key.pair);
    side.contents[side.gathers.at(key)] = Content(key);
    side.gathers.erase(key);
    AtPrefill(key.pair, side.batches.OnGathered(key, SumsOf(Content(key))));
  }

  void DoSent(BatchKey key) {
    auto& side = PrefillOf(key.pair);
    side.in_nccl.erase(key);
    side.batches.OnSent(key);
  }

  void DoReceived(BatchKey key) {
    auto& side = DecodeOf(key.pair);
    side.in_nccl.erase(key);
    AtDecode(key.pair, side.batches.OnReceived(key));
  }

  void DoSummed(BatchKey key) {
    auto& side = DecodeOf(key.pair);
    const uint64_t content = side.contents[side.sums.at(key)];
    if (content != Content(key)) Violation("a slot of a healthy pair has other bytes");
    side.sums.erase(key);
    std::vector<uint64_t> sums = SumsOf(content);
    if (plan_.faults && Draw(30) == 0) sums[1] = 0;
    AtDecode(key.pair, side.batches.OnSummed(key, sums));
  }

  void DoScattered(BatchKey key) {
    auto& side = DecodeOf(key.pair);
    if (side.contents[side.scatters.at(key)] != Content(key)) Violation("scattered other bytes");
    const FrameSet frames = side.scatter_frames.at(key);
    if ((frames & ~live_[key]).any()) Violation("a frame was scattered that may not land");
    if (pairs_[key.pair].committed.contains(key.batch)) Violation("committed twice");
    pairs_[key.pair].committed[key.batch] = frames;
    side.scatters.erase(key);
    AtDecode(key.pair, side.batches.OnScattered(key, frames));
  }

  void DoRevoke(PairId id) {
    --pairs_[id].revokes;
    const auto [key, grant] = granted_[id];
    AtDecode(id, DecodeOf(id).batches.OnGrantUnused(key, grant));
  }

  void DoDrop(PairId id) {
    const BatchKey key = decides_[id];
    auto& side = DecodeOf(id);
    FrameSet frames = FirstFrames(Draw(2) == 0 ? 1 : kFrames);
    // What is launched lands.
    if (!side.scatters.contains(key)) live_[key] &= ~frames;
    AtDecode(id, side.batches.DropFrames(key, frames));
  }

  void Kill(PairId id, int side) {
    Pair& pair = pairs_[id];
    if (pair.dead[side]) return;
    pair.alive = false;
    pair.dead[side] = true;
    (side == 0 ? pair.to_prefill : pair.to_decode).clear();
    if (side == 0) {
      AtPrefill(id, PrefillOf(id).batches.Kill(id));
    } else {
      AtDecode(id, DecodeOf(id).batches.Kill(id));
    }
  }

  void DoAbort(PairId id, int side, bool stuck) {
    Pair& pair = pairs_[id];
    pair.settled[side] = true;
    pair.stuck[side] = stuck;
    if (side == 0) {
      if (stuck) Stick(id, PrefillOf(id));
      auto& batches = PrefillOf(id).batches;
      stuck ? batches.OnAbortStuck(id) : batches.OnAborted(id);
    } else {
      if (stuck) Stick(id, DecodeOf(id));
      auto& batches = DecodeOf(id).batches;
      AtDecode(id, stuck ? batches.OnAbortStuck(id) : batches.OnAborted(id));
    }
  }

  template <typename Batches>
  void Stick(PairId id, Side<Batches>& side) {
    for (const auto& [key, slot] : side.in_nccl) {
      if (key.pair == id) side.stuck[slot] = key;
    }
  }

  // The slot is this batch's alone.
  template <typename Batches>
  void Claim(Side<Batches>& side, const Action& action) {
    for (const auto* users : {&side.gathers, &side.sums, &side.scatters, &side.in_nccl}) {
      for (const auto& [key, slot] : *users) {
        if (slot == action.slot) Violation("two users of a slot");
      }
    }
    if (side.stuck.contains(action.slot)) Violation("a leaked slot is used again");
  }

  void AtPrefill(PairId id, const Actions& actions) {
    auto& side = PrefillOf(id);
    Pair& pair = pairs_[id];
    for (const Action& action : actions) {
      switch (action.kind) {
        case Kind::kAnnounce:
        case Kind::kReady:
          if (!pair.dead[1]) pair.to_decode.push_back(action);
          break;
        case Kind::kGather:
          Claim(side, action);
          side.gathers[action.key] = action.slot;
          break;
        case Kind::kSend:
          Claim(side, action);
          side.in_nccl[action.key] = action.slot;
          pair.sends.push_back(action.key);
          Match(id);
          break;
        case Kind::kEnded: EndAtPrefill(action); break;
        case Kind::kLost: ++pair.lost; break;
        default: Violation("a healthy prefill rank condemns"); break;
      }
    }
  }

  void EndAtPrefill(const Action& action) {
    Pair& pair = pairs_[action.key.pair];
    const auto committed = pair.committed.find(action.key.batch);
    if (committed == pair.committed.end()) {
      if (action.frames.any()) Violation("an ack of frames that never landed");
      ++pair.refused;
    } else {
      if (action.frames != committed->second) Violation("an ack of other frames than landed");
      ++pair.arrived;
    }
  }

  void AtDecode(PairId, const Actions& actions) {
    for (const Action& action : actions) {
      const PairId id = action.key.pair;  // A slot that one pair frees is another's.
      auto& side = DecodeOf(id);
      Pair& pair = pairs_[id];
      switch (action.kind) {
        case Kind::kGrant: granted_[id] = {action.key, action.grant}; break;
        case Kind::kRevoke: ++revoked_; break;
        case Kind::kSpoiled: ++spoiled_; live_[action.key] &= ~action.frames; break;
        case Kind::kSum:
          Claim(side, action);
          side.sums[action.key] = action.slot;
          break;
        case Kind::kScatter:
          Claim(side, action);
          side.scatters[action.key] = action.slot;
          side.scatter_frames[action.key] = action.frames;
          break;
        case Kind::kReceive: Receive(action); break;
        case Kind::kCondemn: Violation("a healthy decode rank condemns"); break;
        default: break;
      }
      const bool is_word = action.kind == Kind::kGrant || action.kind == Kind::kRefuse ||
                           action.kind == Kind::kRevoke || action.kind == Kind::kAck;
      if (is_word && !pair.dead[0]) pair.to_prefill.push_back(action);
    }
  }

  void Receive(const Action& action) {
    const PairId id = action.key.pair;
    auto& side = DecodeOf(id);
    for (const auto& [key, slot] : side.in_nccl) {
      if (key.pair != id && !side.stuck.contains(slot)) Violation("receives of two pairs posted");
    }
    Claim(side, action);
    side.in_nccl[action.key] = action.slot;
    side.contents[action.slot] = kGarbage;
    pairs_[id].receives.push_back(action.key);
    for (const Action& word : side.batches.OnPosted(action.key)) {
      if (!pairs_[id].dead[0]) pairs_[id].to_prefill.push_back(word);
    }
    Match(id);
  }

  // The n-th send meets the n-th receive, whatever they mean.
  void Match(PairId id) {
    Pair& pair = pairs_[id];
    while (!pair.sends.empty() && !pair.receives.empty()) {
      const BatchKey send = pair.sends.front(), receive = pair.receives.front();
      pair.sends.pop_front();
      pair.receives.pop_front();
      auto& from = PrefillOf(id);
      auto& to = DecodeOf(id);
      if (!from.in_nccl.contains(send) || !to.in_nccl.contains(receive)) continue;
      to.contents[to.in_nccl.at(receive)] = from.contents[from.in_nccl.at(send)];
      from.matched.insert(send);
      to.matched.insert(receive);
    }
  }

  Plan plan_;
  std::mt19937_64 random_;
  std::vector<Side<SendingBatches>> prefills_;
  std::vector<Side<ReceivingBatches>> decodes_;
  std::vector<Pair> pairs_;
  std::map<BatchKey, FrameSet> live_;
  std::map<PairId, std::pair<BatchKey, uint32_t>> granted_;  // The latest of each pair.
  std::map<PairId, BatchKey> decides_;                       // The latest announced.
  int revoked_ = 0, spoiled_ = 0;
};

TEST(NcclBatchesTest, EveryBatchOfHealthyPairsIsOverWhateverTheOrderOfEvents) {
  int revoked = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    World world({.seed = seed, .prefills = 1 + static_cast<int>(seed % 3),
                 .decodes = 1 + static_cast<int>(seed / 3 % 3),
                 .slots = 1 + static_cast<int>(seed % 4)});
    world.Run();
    world.CheckRest();
    EXPECT_GT(world.arrived(), 0);
    EXPECT_EQ(world.leaked(), 0);
    revoked += world.revoked();
    if (HasFailure()) return;
  }
  EXPECT_GT(revoked, 0);
}

TEST(NcclBatchesTest, PairsThatDieSpoilNoSlotOfOthersAndStopNobody) {
  int leaked = 0, spoiled = 0;
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    // One slot more than could leak at once: a rank without slots says TCP, which is not here.
    World world({.seed = seed, .prefills = 2, .decodes = 2, .slots = 5, .faults = true});
    world.Run();
    world.CheckRest();
    leaked += world.leaked();
    spoiled += world.spoiled();
    if (HasFailure()) return;
  }
  EXPECT_GT(leaked, 0);
  EXPECT_GT(spoiled, 0);
}

}  // namespace
}  // namespace baton::nccl
