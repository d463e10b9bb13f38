#include "common/transport/tcp/socket.h"

#include <poll.h>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(SocketTest, ConnectsToTheEndpointThatListens) {
  auto listener = ListenTcp("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(absl::IsNotFound(AcceptTcp(*listener).status()));
  auto endpoint = LocalEndpoint(*listener);
  ASSERT_TRUE(endpoint.ok());
  EXPECT_EQ(endpoint->rfind("127.0.0.1:", 0), 0u);
  auto client = ConnectTcp(*endpoint);
  ASSERT_TRUE(client.ok()) << client.status();
  pollfd wait[2] = {{client->get(), POLLOUT, 0}, {listener->get(), POLLIN, 0}};
  ASSERT_GT(::poll(&wait[0], 1, 10000), 0);
  ASSERT_GT(::poll(&wait[1], 1, 10000), 0);
  EXPECT_TRUE(ConnectResult(*client).ok());
  EXPECT_TRUE(AcceptTcp(*listener).ok());
}

TEST(SocketTest, NamesTheCauseWhenNobodyListens) {
  auto listener = ListenTcp("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok());
  const std::string endpoint = *LocalEndpoint(*listener);
  listener->Close();
  auto client = ConnectTcp(endpoint);
  absl::Status status = client.status();
  if (client.ok()) {
    pollfd wait{client->get(), POLLOUT, 0};
    ASSERT_GT(::poll(&wait, 1, 10000), 0);
    status = ConnectResult(*client);
  }
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_NE(status.message().find("refused"), absl::string_view::npos) << status;
}

TEST(SocketTest, RefusesWhatIsNoNumericEndpoint) {
  for (const char* endpoint : {"", "a", "host.example:80", ":80", "1.2.3.4:", "1.2.3.4:http"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ConnectTcp(endpoint).status())) << endpoint;
  }
}

TEST(SocketTest, ADescriptorMovesAndClosesOnce) {
  auto listener = ListenTcp("localhost", 0);
  ASSERT_TRUE(listener.ok());
  FileDescriptor a = *std::move(listener);
  FileDescriptor b(std::move(a));
  EXPECT_FALSE(a.open());
  EXPECT_TRUE(b.open());
  b.Close();
  EXPECT_FALSE(b.open());
  b.Close();
}

}  // namespace
}  // namespace baton
