#pragma once

#include <string>

namespace baton::cli {

struct AuditOptions {
  std::string dir = ".baton";
  bool json = false;
  std::string tls_dir;    // Of an admin; empty = the workers have no TLS.
  double interval_s = 3;  // Between the two samples.
};

// `baton audit`: 0 when every held block has an owner, 1 when one has none, 2 when the cluster or
// one of its servers could not be asked.
int Audit(const AuditOptions& options);

}  // namespace baton::cli
