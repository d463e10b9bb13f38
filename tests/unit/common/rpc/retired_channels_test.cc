#include "common/rpc/retired_channels.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "absl/time/clock.h"

namespace baton {
namespace {

std::shared_ptr<grpc::Channel> Channel() {
  return grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials());
}

bool IsClosedWithin(const std::weak_ptr<grpc::Channel>& channel, absl::Duration limit) {
  const absl::Time end = absl::Now() + limit;
  while (!channel.expired() && absl::Now() < end) std::this_thread::yield();
  return channel.expired();
}

TEST(RetiredChannelsTest, AChannelIsClosedWhenItsLastUserIsGoneAndNotBefore) {
  RetiredChannels retired;
  std::shared_ptr<grpc::Channel> user = Channel();
  const std::weak_ptr<grpc::Channel> used = user;
  std::shared_ptr<grpc::Channel> other = Channel();
  const std::weak_ptr<grpc::Channel> unused = other;
  retired.Add(user);
  retired.Add(std::move(other));
  EXPECT_TRUE(IsClosedWithin(unused, absl::Seconds(10)));
  EXPECT_FALSE(IsClosedWithin(used, absl::Milliseconds(200)));
  user.reset();
  EXPECT_TRUE(IsClosedWithin(used, absl::Seconds(10)));
}

// gRPC's threads must not close the last channel, and a call's user may be one of them.
TEST(RetiredChannelsTest, AChannelIsNeverClosedByItsLastUser) {
  const std::shared_ptr<grpc::Channel> real = Channel();
  std::jthread::id closed_by;
  std::shared_ptr<grpc::Channel> user(
      real.get(), [&](grpc::Channel*) { closed_by = std::this_thread::get_id(); });
  const std::weak_ptr<grpc::Channel> used = user;
  {
    RetiredChannels retired;
    retired.Add(user);
    EXPECT_FALSE(IsClosedWithin(used, absl::Milliseconds(200)));  // It was looked at meanwhile.
    user.reset();
    EXPECT_TRUE(IsClosedWithin(used, absl::Seconds(10)));
  }
  EXPECT_NE(closed_by, std::jthread::id());
  EXPECT_NE(closed_by, std::this_thread::get_id());
}

TEST(RetiredChannelsTest, TheEndClosesAll) {
  std::weak_ptr<grpc::Channel> seen;
  {
    RetiredChannels retired;
    std::shared_ptr<grpc::Channel> channel = Channel();
    seen = channel;
    retired.Add(std::move(channel));
  }
  EXPECT_TRUE(seen.expired());
}

}  // namespace
}  // namespace baton
