#pragma once

#include <string>

#include "deploy/cli/remote_cluster.h"

namespace baton::cli {

struct AuditOptions {
  std::string dir = ".baton";
  bool json = false;
  // Without a router its tls_dir, if any, is for the workers of `dir`.
  RemoteOptions remote;
  double interval_s = 3;  // Between the two samples.
};

// `baton audit`: 0 when every held block has an owner, 1 when one has none, 2 when the cluster or
// one of its servers could not be asked.
int Audit(const AuditOptions& options);

}  // namespace baton::cli
