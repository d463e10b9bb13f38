#pragma once

#include <memory>

#include "absl/status/status.h"
#include "common/worker/worker_config.h"
#include "common/worker/worker_runtime.h"
#include "decode_worker/node.h"

namespace baton {

// The options of baton-decode.
struct DecodeConfig {
  WorkerConfig worker{.steps_in_flight = 2};

  // INVALID_ARGUMENT names the option, its value and the cure.
  absl::Status Validate() const;
  void AddOptions(CLI::App& app);
};

// What makes a WorkerProcess a decode worker.
struct DecodeProgram {
  using Config = DecodeConfig;
  using Node = DecodeNode;
  static constexpr Role kRole = Role::kDecode;
  static constexpr char kName[] = "baton-decode";
  static constexpr char kPurpose[] =
      "Baton decode worker: reserves blocks, receives K/V and streams answers.";

  static std::unique_ptr<DecodeNode> MakeNode(const DecodeConfig& config, WorkerRuntime& runtime);
  static WorkerSnapshot Look(const DecodeNode& node);
};

}  // namespace baton
