#include "decode_worker/program.h"

#include "common/process/identity.h"

namespace baton {

std::unique_ptr<DecodeNode> DecodeProgram::MakeNode(const DecodeConfig&, WorkerRuntime& runtime) {
  return std::make_unique<DecodeNode>(
      runtime.parts(), DecodeNodeOptions{.ranks = runtime.DataRanks()},
      DecodeIdentity{.new_ticket = NewTicket,
                     .key_of = [&runtime](Incarnation prefill) { return runtime.KeyOf(prefill); }});
}

WorkerSnapshot DecodeProgram::Look(const DecodeNode& node) {
  const DecodeCounters& counters = node.counters();
  return {.status = node.Status(),
          .idle = node.idle(),
          .counted = counters,
          .preemptions = node.num_preemptions(),
          .own = {{"revoked_reservations", counters.revoked},
                  {"swapped_sequences", node.num_swaps()},
                  {"rebinds", counters.rebinds},
                  {"self_prefills", counters.computed_here},
                  {"joined_choices", counters.joined},
                  {"unbound_expired", counters.unbound_expired}}};
}

}  // namespace baton
