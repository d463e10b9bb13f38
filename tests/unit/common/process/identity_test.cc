#include "common/process/identity.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <set>

namespace baton {
namespace {

TEST(IdentityTest, IncarnationsAndTicketsAreNeverZeroAndNeverRepeat) {
  std::set<Incarnation> incarnations;
  std::set<TicketId> tickets;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_NE(*incarnations.insert(NewIncarnation()).first, 0u);
    EXPECT_FALSE(tickets.insert(NewTicket()).first->empty());
  }
  EXPECT_EQ(incarnations.size(), 1000u);
  EXPECT_EQ(tickets.size(), 1000u);
}

TEST(IdentityTest, CountsTheCoresThatTheProcessMayUse) {
  EXPECT_GE(NumCores(), 1);
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(NumCores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(NumCores(), CPU_COUNT(&all));
}

}  // namespace
}  // namespace baton
