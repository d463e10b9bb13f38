#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/router_host.h"
#include "tests/sim/scenario.h"

namespace baton::sim {

// The clients of all routers. Checks what each of them is told: positions in order and each once,
// the tokens of a fault-free run, one terminal event and nothing after it, an end in time.
class Clients {
 public:
  Clients(World& world, Trace& trace, const Scenario& scenario,
          std::function<void(std::string)> violation)
      : world_(world), trace_(trace), scenario_(scenario), violation_(std::move(violation)) {}
  void Attach(std::vector<RouterHost*> routers) { routers_ = std::move(routers); }

  // A request to one router; the key.
  uint64_t Submit(int router, const ValidRequest& request);
  void SubmitDrawn(int router);
  void Cancel(uint64_t key);
  // The router's outbox.
  void Emit(int router, uint64_t key, ClientEvent event);
  // The connections to it are gone.
  void RouterDied(int router);

  int64_t num_live() const { return num_live_; }
  const absl::Status* ended(uint64_t key) const {
    const Client& client = clients_.at(key);
    return client.ended ? &*client.ended : nullptr;
  }
  std::string FirstLive() const;
  // Called for each request that fails although its client neither cancelled it nor set a short
  // deadline, and its router lived.
  std::function<void(int router, Time submitted, const absl::Status&)> on_failure;
  // Called for each token of a request.
  std::function<void(uint64_t key)> on_token;

  int64_t num_ok = 0;
  int64_t num_failed = 0;
  int64_t num_cancelled = 0;
  int64_t num_lost_with_router = 0;
  int64_t num_tokens = 0;

 private:
  struct Client {
    int router = 0;
    ValidRequest request;
    Time submitted{};
    std::vector<std::vector<int32_t>> expected;  // Per choice.
    std::vector<size_t> seen;                    // Tokens seen per choice.
    std::vector<size_t> stop_at;                 // 0: never.
    std::vector<bool> stopped;                   // The router knows.
    std::vector<bool> finished;
    std::vector<int32_t> next_score;  // Per prompt: position of the next log probability.
    bool cancelled = false;
    std::optional<absl::Status> ended;
  };

  ValidRequest DrawRequest();
  void OnTokens(uint64_t key, Client& client, const ChoiceTokens& tokens);
  void OnScored(Client& client, const PromptScored& scored);
  void OnEnded(Client& client, const absl::Status& status);
  void ExpectEnd(uint64_t key, Time when);
  void ToRouter(int router, RouterMail mail);

  World& world_;
  Trace& trace_;
  const Scenario& scenario_;
  std::function<void(std::string)> violation_;
  std::vector<RouterHost*> routers_;
  std::map<uint64_t, Client> clients_;
  uint64_t next_key_ = 1;
  int64_t num_live_ = 0;
};

}  // namespace baton::sim
