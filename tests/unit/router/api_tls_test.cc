#include "router/api_tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/tls/openssl_handles.h"
#include "tests/unit/common/tls/tls_folder.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

class ApiTlsTest : public ::testing::Test {
 protected:
  ApiTlsTest() : folder_(Files()) {}

  static TlsFiles Files(int64_t now_s = kNowS) {
    return NewFiles(NewAuthority("test.local", now_s), IdOf(TlsRole::kRouter), now_s);
  }
  absl::StatusOr<std::unique_ptr<ApiTls>> Create() {
    return ApiTls::Create(folder_.path(), [this] { return now_s_; });
  }
  // An edition is taken when two looks found the same.
  static void PollTwice(ApiTls& tls) {
    for (int i = 0; i < 2; ++i) tls.Poll();
  }
  // What HTTP and gRPC show.
  static std::string LeafOf(const ApiTls& tls) {
    const auto leaf_of = [&](HttpVersion version) {
      return ToPem(SSL_CTX_get0_certificate(tls.context(version).get()));
    };
    EXPECT_EQ(leaf_of(HttpVersion::kHttp2), leaf_of(HttpVersion::kHttp11));
    return leaf_of(HttpVersion::kHttp2);
  }

  int64_t now_s_ = kNowS;
  TlsFolder folder_;
};

TEST_F(ApiTlsTest, ANewEditionIsTakenWhole) {
  const auto tls = Create();
  ASSERT_TRUE(tls.ok()) << tls.status();
  EXPECT_EQ((*tls)->not_after_s(), kNowS + kLeafDays * kDayS);
  now_s_ += kDayS;
  const TlsFiles next = Files(now_s_);
  const std::shared_ptr<SSL_CTX> old = (*tls)->context(HttpVersion::kHttp2);
  // Half of it is there: the key alone.
  folder_.WriteOne("tls.key", next.key_pem);
  PollTwice(**tls);
  EXPECT_EQ((*tls)->context(HttpVersion::kHttp2), old);
  EXPECT_EQ((*tls)->refused_editions(), 1);
  folder_.WriteOne("tls.crt", next.chain_pem);
  PollTwice(**tls);
  EXPECT_EQ(LeafOf(**tls), next.chain_pem);
  EXPECT_EQ((*tls)->not_after_s(), now_s_ + kLeafDays * kDayS);
}

TEST_F(ApiTlsTest, ABadEditionIsCountedOnceAndTheOldStays) {
  const auto tls = Create();
  ASSERT_TRUE(tls.ok()) << tls.status();
  const std::string leaf = LeafOf(**tls);
  const auto put = [&](const std::function<void()>& change) {
    change();
    PollTwice(**tls);
    PollTwice(**tls);
    EXPECT_EQ(LeafOf(**tls), leaf);
  };
  put([&] { folder_.Write(Files(kNowS - 2 * kLeafDays * kDayS)); });  // Expired.
  put([&] { folder_.WriteOne("tls.crt", "nothing"); });
  put([&] { std::filesystem::remove(folder_.file("tls.key")); });
  EXPECT_EQ((*tls)->refused_editions(), 3);
  put([&] { folder_.Write(Files(kNowS + kDayS)); });  // Not valid yet,
  EXPECT_EQ((*tls)->refused_editions(), 4);
  now_s_ += kDayS;  // and then it is.
  (*tls)->Poll();
  EXPECT_NE(LeafOf(**tls), leaf);
}

TEST_F(ApiTlsTest, TheFirstLookNamesTheOptionAndTheFile) {
  folder_.WriteOne("tls.crt", "nothing");
  const std::string error(Create().status().message());
  EXPECT_THAT(error, HasSubstr("--api-tls-dir " + folder_.path() + ": tls.crt holds no"));
}

}  // namespace
}  // namespace baton
