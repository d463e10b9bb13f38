#pragma once

#include <string>
#include <vector>

#include "deploy/cli/finding.h"
#include "deploy/cli/machine.h"
#include "deploy/cli/remote_cluster.h"

namespace baton::cli {

struct DoctorOptions {
  std::string dir = ".baton";
  RemoteOptions remote;  // A cluster elsewhere to ask, too.
  std::string model;  // Empty = the tiny-kjv of this checkout.
  int tp = 1;         // Ranks of each worker that shall run here.
};

// What a model folder weighs, from the sizes of its files and config.json.
struct ModelNeed {
  int64_t weight_bytes = 0;
  int64_t kv_bytes_per_token = 0;  // In fp32, the widest form.
  int64_t max_positions = 0;
};

// `baton doctor`: 0 when there is no problem.
int Doctor(const DoctorOptions& options);

// The findings about `machine` for workers of `tp` ranks; `need` may be null when no model was
// found.
std::vector<Finding> Examine(const Machine& machine, const ModelNeed* need, int tp);

// Which NCCL workers would find, or why none: never a problem, for K/V goes over TCP then.
Finding ExamineNccl(const std::string& path);

// Zeros where config.json does not say.
ModelNeed ReadModelNeed(const std::string& model);

}  // namespace baton::cli
