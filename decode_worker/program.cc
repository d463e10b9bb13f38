#include "decode_worker/program.h"

#include <CLI/CLI.hpp>

#include "common/base/status.h"
#include "common/process/command_line.h"
#include "common/process/identity.h"

namespace baton {

absl::Status DecodeConfig::Validate() const {
  RETURN_IF_ERROR(worker.Validate());
  return CheckOption("--steps-in-flight", worker.steps_in_flight, 1, 2);
}

void DecodeConfig::AddOptions(CLI::App& app) {
  AddWorkerOptions(app, worker);
  app.add_option("--steps-in-flight", worker.steps_in_flight,
                 "2: a step starts while the one before it runs, and takes its tokens where it "
                 "leaves them; 1: when its tokens have gone to the clients. The same bits")
      ->group("Memory and batching")
      ->capture_default_str();
}

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
          .stands_still = node.stands_still(),
          .counted = counters,
          .preemptions = node.num_preemptions(),
          .own = {{"revoked_reservations", counters.revoked},
                  {"swapped_sequences", node.num_swaps()},
                  {"rebinds", counters.rebinds},
                  {"self_prefills", counters.computed_here},
                  {"joined_choices", counters.joined},
                  {"copied_tokens", node.num_copied_tokens()},
                  {"returned_answers", counters.returned},
                  {"resumed_answers", counters.resumed},
                  {"unbound_expired", counters.unbound_expired}}};
}

}  // namespace baton
