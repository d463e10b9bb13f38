#include "common/process/identity.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace baton
