#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/base/protocol_version.h"
#include "common/base/sampling.h"
#include "common/base/time.h"
#include "common/kv_cache/block_types.h"
#include "common/transport/kv_transport.h"

// What the processes of the cluster say to each other, in one place. ARCHITECTURE.md has the table
// of who says what in which state. Structs named ...Request and ...Event cross the network
// (proto/baton/v1 mirrors them, common/rpc converts). What a node is told is mail: worker_mail.h,
// router_mail.h.
namespace baton {

enum class Role : uint8_t { kRouter, kPrefill, kDecode };

// ---- Requests: the client's, as the scheduler takes it -----------------------------------------

inline constexpr int32_t kMaxSequencesPerRequest = 128;  // Prompts x choices.

// A request whose every field was checked against the model and the limits; the only form that
// the router's scheduler takes.
struct ValidRequest {
  std::string label;   // The id that the client sees in its answer; never a key.
  std::string tenant;  // Salts the prefix cache.
  std::vector<std::vector<int32_t>> prompts;  // [>= 1][>= 1] token ids.
  int32_t num_choices = 1;  // Choices per prompt; choice c of prompt p has index p*n + c.
  SamplingParams sampling;  // `choice` is filled in per sequence.
  bool score_only = false;  // Prompt log probabilities and no token: max_tokens is ignored.
  int32_t priority = 0;     // Lower runs first.
  int32_t weight = 1;       // Of the tenant, up to 1,000: its part of what it shares with others.
  Duration timeout{};       // From arrival to the terminal event.
  int64_t bytes = 0;        // Size of the client's body, for the queue's byte cap.
  std::string prompt_param = "prompt";  // The field that the prompts came in, for errors.
};

// ---- Decode call: router -> decode worker; the open call is the lease --------------------------

struct DecodeRequest {
  SequenceId sequence;
  Attempt attempt = 1;
  Incarnation worker = 0;       // The process that is meant; another one at its address refuses.
  Incarnation prefill = 0;      // The worker that will write, which names the pair key; 0 = nobody.
  bool compute_prompt = false;  // Nobody will write: compute what of the prompt is not here.
  bool score_only = false;      // And no token: the prompt's log probabilities, if asked for.
  std::vector<int32_t> tokens;  // Prompt, and with a recovery the emitted tokens after it.
  int32_t prompt_length = 0;    // Where the client's prompt ends within `tokens`.
  SamplingParams sampling;
  std::string tenant;
  Duration age{};      // Since the router took the request; the youngest is preempted first.
  Duration timeout{};  // Time left for the whole request.
};

// First event of a Decode call: blocks are held, the prefill worker may write.
struct ReservedEvent {
  Attempt attempt = 1;
  TicketId ticket;
  std::vector<DataRank> ranks;  // Of the decode worker, in order: its heads, as HeadsOf says.
  PairKey pair_key{};
  Incarnation decode = 0;
  int32_t cached_tokens = 0;  // Not to be sent: a pinned prefix, or behind the model's window.
};

// The reservation goes to the sequence's next attempt: its old ticket is void, and once the old
// writer is quiet a ReservedEvent with a new ticket follows on the Decode call. If the K/V was
// verified before, a TokensEvent without outputs says so.
struct RebindRequest {
  SequenceId sequence;
  Attempt attempt = 1;      // Above the one before, or the request is a no-op.
  Incarnation prefill = 0;  // The worker that will write now; 0: compute the prompt yourself.
};

// Tokens in order of position, without gaps; the first event starts at position tokens.size().
struct TokensEvent {
  Attempt attempt = 1;
  std::vector<TokenOutput> outputs;
  // In the event that says that the worker computes the prompt itself: what it had cached of it.
  int32_t cached_tokens = 0;
};

// ---- Prefill call: router -> prefill worker ----------------------------------------------------

// Where the finished KV goes. Absent = no decode worker is needed (one token, or scoring).
struct HandoffTarget {
  TicketId ticket;
  std::vector<DataRank> ranks;  // As in the ReservedEvent.
  PairKey pair_key{};
  Incarnation decode = 0;
  int32_t first_token = 0;  // The decode worker already holds the tokens before.
};

struct PrefillRequest {
  SequenceId sequence;
  Attempt attempt = 1;
  Incarnation worker = 0;  // The process that is meant; another one at its address refuses.
  std::vector<int32_t> tokens;
  int32_t prompt_length = 0;
  SamplingParams sampling;
  bool score_only = false;
  std::string tenant;
  Duration age{};
  Duration timeout{};
  std::optional<HandoffTarget> handoff;
};

// A piece of the prompt's log probabilities, if they were asked for. The pieces of a call come in
// order of position, from 1 to prompt_length - 1 without gaps, all before its PrefilledEvent, or
// before the first token of a Decode call that computes the prompt.
struct ScoresEvent {
  Attempt attempt = 1;
  std::vector<PromptLogprob> logprobs;  // [>= 1], of at most kPieceScores numbers.
};

// Log probabilities in one piece, those of alternatives included: less than a message carries of
// more than one call, so that tokens of others do not wait for it. Workers of the last release make
// pieces of up to kMaxPieceScores.
inline constexpr int32_t kPieceScores = 4096;
inline constexpr int32_t kMaxPieceScores = 64 << 10;

// The prompt is computed; with score_only `first` is absent. The call then stays open until the
// decode worker has verified the KV, and closes with OK.
struct PrefilledEvent {
  Attempt attempt = 1;
  std::optional<TokenOutput> first;
  int32_t cached_tokens = 0;
};

// The K/V that a Prefill call holds goes to this ticket, without being computed again.
struct SendRequest {
  SequenceId sequence;
  Attempt attempt = 1;
  HandoffTarget handoff;
};

// Either side: the transfer of this attempt has ended without success. The call stays open and
// what it holds is kept for a Rebind or a Send.
struct HandoffFailedEvent {
  Attempt attempt = 1;
  std::string reason;
};

using WorkerEvent =
    std::variant<ReservedEvent, TokensEvent, ScoresEvent, PrefilledEvent, HandoffFailedEvent>;

// ---- Cluster calls: hello and status -----------------------------------------------------------

// What a worker is; constant for one incarnation.
struct HelloInfo {
  int32_t protocol_version = kProtocolVersion;
  int32_t kv_wire_version = kKvWireVersion;
  Role role = Role::kPrefill;
  Incarnation incarnation = 0;
  std::string numerics_id;
  uint64_t layout_digest = 0;
  uint64_t model_digest = 0;
  int32_t tp_size = 1;
  int32_t block_size = 0;
  int32_t num_blocks = 0;
  int32_t layer_groups = 1;   // A block has the layers of one: block_size tokens take so many.
  int32_t max_model_len = 0;  // Prompt and answer together, bounded by model, option and pool.
  int32_t vocab_size = 0;
  bool computes_prompts = false;  // A decode worker that takes DecodeRequest::compute_prompt.
  bool serves_sessions = false;   // All calls of a router may go over one stream.
  bool scores_prompts = false;    // A decode worker that scores the prompts that it computes.
  // Its K/V connections; else they are proved by HMAC. The release before does not tell.
  std::optional<bool> kv_tls;
  // For operators, of the NCCL that carries K/V: "2.23.4", or empty, and why.
  std::string nccl_version;
  std::string why_no_nccl;
};

// What carries the K/V that a prefill worker sends to one decode worker, by the links between their
// ranks. For operators.
struct KvPeer {
  Incarnation incarnation = 0;
  int32_t links_over_nccl = 0;
  int32_t links_over_tcp = 0;
  std::string why_tcp;  // Of one of them.
  bool operator==(const KvPeer&) const = default;
};
inline constexpr int kMostKvPeers = 64;

// What a worker does now; a hint for the router, the reservation decides.
struct WorkerStatus {
  Incarnation incarnation = 0;
  BlockCounts blocks;
  int32_t running = 0;        // Sequences in the running batch.
  int32_t waiting = 0;        // Admitted, not computing: queued, reserved, in transfer.
  int32_t preempted = 0;      // Waiting to be computed again.
  int64_t queued_tokens = 0;  // Prompt tokens still to be computed.
  int64_t tokens_per_s = 0;   // That full steps computed of late; 0: none yet.
  bool draining = false;
  uint64_t progress = 0;  // Moves with each layer and each end of a step.
  bool computing = false;
  Duration longest_layer{};  // Between two layers, lately: how long silence is normal.
  std::vector<KvPeer> kv_peers;  // Of a prefill worker with NCCL; kMostKvPeers of them at most.
};

// What one call holds on a worker, for the operator.
struct HeldCall {
  SequenceId sequence;
  Attempt attempt = 1;
  std::string state;       // As in ARCHITECTURE.md.
  int32_t num_blocks = 0;  // With shared prefix blocks.
  bool transfer_open = false;
  std::vector<int32_t> leg_ranks;  // Here, of the legs of that transfer, as far as they are open.
  Duration age{};                  // Since the call was opened here.
};

// Everything that holds blocks on a worker, oldest call first.
struct WorkerAudit {
  Incarnation incarnation = 0;
  BlockCounts blocks;
  // Blocks, also in host memory, neither free nor cached, that no call holds: a leak.
  int32_t num_unowned = 0;
  std::vector<int32_t> unowned_leg_ranks;  // Of legs of which no call has the transfer: leaks too.
  std::vector<HeldCall> calls;
};

// ---- What a router tells its operator ----------------------------------------------------------

// A sequence that the router answers for, and the workers whose calls it holds open (0 = none).
struct LiveSequence {
  SequenceId sequence;
  std::string label;  // Of its request.
  Attempt attempt = 0;
  std::string state;  // As in ARCHITECTURE.md.
  Incarnation prefill = 0;
  Incarnation decode = 0;
  Duration age{};
  int32_t moves = 0;
  int32_t retries = 0;
  int32_t handoff_failures = 0;   // Since it last began from the start.
  std::vector<Incarnation> lost;  // What it was moved or tried again away from.
};
// Workers, by index, between which no transfer is sought for now.
struct BlamedPair {
  int32_t prefill = 0;
  int32_t decode = 0;
  Duration left{};
};
struct RouterAudit {
  Incarnation incarnation = 0;
  std::vector<LiveSequence> sequences;
  std::vector<BlamedPair> blamed;
};

// ---- What the router's node says to a client's edge --------------------------------------------

struct ChoiceTokens {
  int32_t choice = 0;
  std::vector<TokenOutput> outputs;  // The last one carries the finish reason.
};
// More log probabilities of a prompt: in order, each position from 1 to prompt_length - 1 once. A
// prompt of one token has none.
struct PromptScored {
  int32_t prompt = 0;
  std::vector<PromptLogprob> logprobs;
};
// The terminal event: exactly one per ClientSubmit, nothing after it.
struct RequestEnded {
  absl::Status status;
  int32_t cached_tokens = 0;  // Over all prompts, of what those who computed them had cached.
};
using ClientEvent = std::variant<ChoiceTokens, PromptScored, RequestEnded>;

}  // namespace baton
