#include "common/transport/tcp/call_queue.h"

#include <poll.h>

#include "gtest/gtest.h"

namespace baton {
namespace {

bool Readable(int fd) {
  pollfd wait{fd, POLLIN, 0};
  return ::poll(&wait, 1, 0) == 1;
}

TEST(CallQueueTest, IsReadableWhileSomethingWaitsAndKeepsTheOrder) {
  CallQueue queue;
  ASSERT_TRUE(queue.open());
  EXPECT_FALSE(Readable(queue.wake_fd()));
  queue.Add(AbortArgs{{1, 1}});
  queue.Add(PushArgs{{2, 2}, 0, 0, 1});
  EXPECT_TRUE(Readable(queue.wake_fd()));
  auto calls = queue.Take();
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(std::get<AbortArgs>(calls[0]).ticket, (TicketId{1, 1}));
  EXPECT_EQ(std::get<PushArgs>(calls[1]).ticket, (TicketId{2, 2}));
  EXPECT_FALSE(Readable(queue.wake_fd()));
  EXPECT_TRUE(queue.Take().empty());
  queue.Add(AbortArgs{{3, 3}});
  EXPECT_TRUE(Readable(queue.wake_fd()));
}

TEST(CallQueueTest, StopStaysReadable) {
  CallQueue queue;
  EXPECT_FALSE(queue.stopped());
  queue.Stop();
  EXPECT_TRUE(queue.stopped());
  EXPECT_TRUE(Readable(queue.wake_fd()));
  EXPECT_TRUE(queue.Take().empty());
  EXPECT_TRUE(Readable(queue.wake_fd()));
}

// The progress thread looks at stopped(), then takes: a stop between the two must wake it again.
TEST(CallQueueTest, TakingWhatCameBeforeAStopLeavesItReadable) {
  CallQueue queue;
  queue.Add(AbortArgs{{1, 1}});
  ASSERT_FALSE(queue.stopped());
  queue.Stop();
  EXPECT_EQ(queue.Take().size(), 1u);
  EXPECT_TRUE(Readable(queue.wake_fd()));
}

}  // namespace
}  // namespace baton
