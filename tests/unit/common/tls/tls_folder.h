#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/tls/certificate_authority.h"
#include "common/tls/tls_files.h"

namespace baton {

inline constexpr int64_t kNowS = 1'800'000'000;  // In 2027.

inline CertificateAuthority NewAuthority(const std::string& trust_domain = "test.local",
                                         int64_t now_s = kNowS) {
  absl::StatusOr<CertificateAuthority> made = CertificateAuthority::Make(trust_domain, now_s);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

inline SpiffeId IdOf(TlsRole role, const std::string& release = "baton") {
  return {.trust_domain = "test.local", .name_space = "default", .release = release, .role = role};
}

// A leaf that is valid from an hour before `now_s` on for 30 days.
inline TlsFiles NewFiles(const CertificateAuthority& authority, const SpiffeId& id,
                         int64_t now_s = kNowS) {
  absl::StatusOr<TlsFiles> made = authority.Issue(id, now_s);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// A folder as --tls-dir names one, which goes with this.
class TlsFolder {
 public:
  TlsFolder() {
    std::string name = "/tmp/baton-tls-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  explicit TlsFolder(const TlsFiles& files) : TlsFolder() { Write(files); }
  ~TlsFolder() { std::filesystem::remove_all(path_); }
  TlsFolder(const TlsFolder&) = delete;
  TlsFolder& operator=(const TlsFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const char* name) const { return path_ + "/" + name; }

  void Write(const TlsFiles& files) const {
    WriteOne("tls.key", files.key_pem);
    chmod(file("tls.key").c_str(), 0600);
    WriteOne("tls.crt", files.chain_pem);
    WriteOne("ca.crt", files.ca_pem);
  }
  void WriteOne(const char* name, const std::string& text) const {
    std::ofstream(file(name)) << text;
  }

 private:
  std::string path_;
};

}  // namespace baton
