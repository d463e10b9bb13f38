#pragma once

#include <cstdint>
#include <string>

namespace baton::cli {

struct CertsOptions {
  std::string dir = "certs";
  std::string trust_domain = "cluster.local";
  std::string name_space = "default";
  std::string release = "baton";
  std::string role;  // Of `issue`; empty = all.
  int days = 30;     // That a leaf is valid.
  bool all = false;  // `renew`: whatever is left of them.
  bool begin = false;   // `rotate-ca`: one of these two.
  bool finish = false;
};

// `baton certs init|issue|renew|rotate-ca`: exit code 0, or 2 after one line on stderr.
int InitCerts(const CertsOptions& options);
int IssueCerts(const CertsOptions& options);
int RenewCerts(const CertsOptions& options);
int RotateCa(const CertsOptions& options);

}  // namespace baton::cli
