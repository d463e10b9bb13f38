#include "common/http/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/common/http/test_client.h"

namespace baton::http {
namespace {

using boost::asio::ip::tcp;
using ::testing::HasSubstr;

class ListenerTest : public ::testing::Test {
 protected:
  // Runs until so many were taken, or nothing is left to do.
  void RunUntilTaken(int count) {
    while (num_taken_ < count && io_.run_one() > 0) {
    }
  }

  boost::asio::io_context io_{1};
  int num_taken_ = 0;
  bool is_behind_ = false;
  Listener listener_{io_,
                     {.take = [this](tcp::socket) { ++num_taken_; },
                      .make_room = [] { return false; },
                      .is_behind = [this] { return std::exchange(is_behind_, false); }}};
};

TEST_F(ListenerTest, TakesOneAfterTheOtherUntilItIsClosed) {
  ASSERT_TRUE(listener_.Bind("localhost", 0).ok());
  listener_.Accept();
  const TestClient first(listener_.port());
  const TestClient second(listener_.port());
  RunUntilTaken(1);
  is_behind_ = true;  // The next comes a little later.
  const TestClient third(listener_.port());
  RunUntilTaken(3);
  EXPECT_EQ(num_taken_, 3);
  listener_.Close();
  io_.run();  // Nothing is waited for any more.
  EXPECT_FALSE(TestClient(listener_.port()).connected());
}

TEST_F(ListenerTest, NamesWhereItCannotListen) {
  EXPECT_THAT(std::string(listener_.Bind("nowhere", 1).message()),
              HasSubstr("host \"nowhere\" is not an IP address"));
  ASSERT_TRUE(listener_.Bind("127.0.0.1", 0).ok());
  Listener second(io_, {});
  const absl::Status status = second.Bind("127.0.0.1", listener_.port());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cannot listen on 127.0.0.1 port " + std::to_string(listener_.port())));
}

TEST_F(ListenerTest, ListensOnIpv6Too) {
  Listener listener(io_, {});
  if (absl::Status status = listener.Bind("::1", 0); !status.ok()) GTEST_SKIP() << status;
  EXPECT_NE(listener.port(), 0);
}

}  // namespace
}  // namespace baton::http
