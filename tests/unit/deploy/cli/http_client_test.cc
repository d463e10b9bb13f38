#include "deploy/cli/http_client.h"

#include <future>
#include <thread>

#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/read.hpp"
#include "boost/asio/read_until.hpp"
#include "boost/asio/streambuf.hpp"
#include "boost/asio/write.hpp"
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
