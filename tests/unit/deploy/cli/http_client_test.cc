#include "deploy/cli/http_client.h"

#include <openssl/evp.h>
#include <openssl/x509v3.h>

#include <fstream>
#include <future>
#include <thread>

#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/read.hpp"
#include "boost/asio/read_until.hpp"
#include "boost/asio/streambuf.hpp"
#include "boost/asio/write.hpp"
#include "common/http/http_server.h"
#include "common/tls/openssl_handles.h"
#include "common/tls/server_pair.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::cli {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// A server that answers one connection with fixed pieces and closes it.
class OneAnswer {
 public:
  explicit OneAnswer(std::vector<std::string> pieces)
      : acceptor_(io_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)) {
    thread_ = std::jthread([this, pieces = std::move(pieces)] {
      tcp::socket socket = acceptor_.accept();
      boost::system::error_code error;
      const size_t head =
          asio::read_until(socket, asio::dynamic_buffer(request_), "\r\n\r\n", error);
      head_.set_value(request_.substr(0, head));
      for (const std::string& piece : pieces) asio::write(socket, asio::buffer(piece), error);
      if (pieces.empty()) {
        asio::read(socket, asio::dynamic_buffer(request_), error);  // Never answers.
      }
    });
  }
  std::string url() const {
    return "http://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port());
  }
  std::string RequestHead() { return head_.get_future().get(); }

 private:
  asio::io_context io_;
  tcp::acceptor acceptor_;
  std::string request_;
  std::promise<std::string> head_;
  std::jthread thread_;
};

TEST(HttpClientTest, CollectsABodyAndSendsAGet) {
  OneAnswer server({"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"});
  const auto result = HttpCall({.url = server.url(), .target = "/x"});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->code, 200);
  EXPECT_EQ(result->body, "hello");
  EXPECT_THAT(server.RequestHead(), testing::StartsWith("GET /x HTTP/1.1\r\n"));
}

TEST(HttpClientTest, SendsTheApiKeyThatItIsGiven) {
  OneAnswer server({"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"});
  EXPECT_TRUE(HttpCall({.url = server.url(), .target = "/", .api_key = "k-1"}).ok());
  EXPECT_THAT(server.RequestHead(), testing::HasSubstr("\r\nAuthorization: Bearer k-1\r\n"));
}

TEST(HttpClientTest, HandsOnAChunkedBodyAsItComes) {
  OneAnswer server({"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "3\r\none\r\n",
                    "3\r\ntwo\r\n0\r\n\r\n"});
  std::string streamed;
  const auto result = HttpCall({.url = server.url(), .target = "/", .body = "{}"},
                               [&](absl::string_view piece) { streamed += std::string(piece); });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(streamed, "onetwo");
  EXPECT_THAT(server.RequestHead(), testing::StartsWith("POST / HTTP/1.1\r\n"));
}

TEST(HttpClientTest, BodyOfAnErrorIsCollectedThoughAStreamWasAsked) {
  OneAnswer server(
      {"HTTP/1.1 400 Bad\r\nContent-Length: 29\r\n\r\n"
       R"({"error":{"message":"no, n"}})"});
  std::string streamed;
  const auto result = HttpCall({.url = server.url(), .target = "/", .body = "{}"},
                               [&](absl::string_view piece) { streamed += std::string(piece); });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(streamed, "");
  EXPECT_EQ(ErrorMessageOf(*result), "no, n");
}

TEST(HttpClientTest, BrokenBodyIsAnError) {
  OneAnswer server({"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello"});
  EXPECT_EQ(HttpCall({.url = server.url(), .target = "/"}).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST(HttpClientTest, SilentServerIsGivenUp) {
  OneAnswer server({});
  EXPECT_EQ(
      HttpCall({.url = server.url(), .target = "/", .idle_timeout = std::chrono::milliseconds(50)})
          .status()
          .code(),
      absl::StatusCode::kDeadlineExceeded);
}

// A key and a certificate of its own for `host`, an address; PEM.
std::string NewHostPair(const char* host) {
  const KeyPtr key(EVP_EC_gen("P-256"));
  const CertPtr cert(X509_new());
  X509_set_version(cert.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(cert.get()), 3600);
  X509_set_pubkey(cert.get(), key.get());
  X509_EXTENSION* names = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name,
                                              (std::string("IP:") + host).c_str());
  X509_add_ext(cert.get(), names, -1);
  X509_EXTENSION_free(names);
  X509_sign(cert.get(), key.get(), EVP_sha256());
  return ToPem(key.get()) + ToPem(cert.get());
}

// Over TLS; `pair_pem` as NewHostPair.
std::unique_ptr<http::HttpServer> NewHttpsServer(const std::string& pair_pem) {
  http::ServerOptions options;
  const auto context = MakeHttpsContext(pair_pem);
  EXPECT_TRUE(context.ok()) << context.status();
  options.tls = [context = *context] { return context; };
  auto server = http::HttpServer::Create(
      std::move(options), {{"GET", "/who", [](http::Request request, auto writer) {
                              const std::string_view key = request.Find("authorization");
                              writer->Respond({.body = std::string(key)});
                            }}});
  EXPECT_TRUE(server.ok()) << server.status();
  (*server)->Start();
  return *std::move(server);
}

absl::StatusOr<HttpResult> AskSecurely(const std::string& scheme, int port,
                                       const std::string& ca_pem) {
  const std::string ca = testing::TempDir() + "/http_client_test.crt";
  std::ofstream(ca) << ca_pem;
  return HttpCall({.url = scheme + "127.0.0.1:" + std::to_string(port),
                   .target = "/who",
                   .api_key = "k-1",
                   .trust = TrustCas(ca).value(),
                   .idle_timeout = std::chrono::seconds(60)});
}

TEST(HttpClientTest, AsksAServerWhoseNameItsCaKnowsAndNoOther) {
  const std::string pair = NewHostPair("127.0.0.1");
  const auto server = NewHttpsServer(pair);
  const auto answer = AskSecurely("https://", server->port(), pair);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->body, "Bearer k-1");
  const auto stranger = AskSecurely("https://", server->port(), NewHostPair("127.0.0.1"));
  EXPECT_THAT(stranger.status().message(), testing::HasSubstr("certificate verify failed"));
  const std::string other = NewHostPair("127.0.0.2");
  const auto misnamed = NewHttpsServer(other);
  const auto elsewhere = AskSecurely("https://", misnamed->port(), other);
  EXPECT_THAT(elsewhere.status().message(), testing::HasSubstr("certificate verify failed"));
}

TEST(HttpClientTest, SendsNoKeyToAServerWithoutTls) {
  http::ServerOptions options;
  options.authorize = [](const http::Request& head) -> http::Decision {
    ADD_FAILURE() << head.path;
    return {};
  };
  const auto server = http::HttpServer::Create(std::move(options), {});
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->Start();
  EXPECT_FALSE(AskSecurely("https://", (*server)->port(), NewHostPair("127.0.0.1")).ok());
}

TEST(HttpClientTest, ClosedPortAndOddUrlAreErrors) {
  EXPECT_EQ(HttpCall({.url = "http://127.0.0.1:1", .target = "/"}).status().code(),
            absl::StatusCode::kUnavailable);
  for (const char* odd : {"localhost", "http://:80", "http://h:", "http://h", ""}) {
    EXPECT_EQ(HttpCall({.url = odd, .target = "/"}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << odd;
  }
}

TEST(HttpClientTest, AnErrorWithoutAMessageShowsItsBeginning) {
  for (const char* odd : {"oops", "{}", R"({"error": 1})", R"({"error": {"message": 1}})"}) {
    EXPECT_EQ(ErrorMessageOf({.code = 500, .body = odd}), std::string("HTTP 500 ") + odd);
  }
  EXPECT_LT(ErrorMessageOf({.code = 500, .body = std::string(5000, 'x')}).size(), 300u);
}

}  // namespace
}  // namespace baton::cli
