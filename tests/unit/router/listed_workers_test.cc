// Workers that are listed and forgotten while the router runs.

#include "gtest/gtest.h"
#include "tests/unit/router/worker_directory_fixture.h"

namespace baton {
namespace {

using Code = absl::StatusCode;

using ListedWorkersTest = WorkerDirectoryTest;

TEST_F(ListedWorkersTest, AForgottenWorkerIsNeitherKnownNorACandidate) {
  AllUp();
  const RouteNeed longer{.prompt_tokens = 20, .total_tokens = 101};
  EXPECT_EQ(directory_.Fits(longer).code(), Code::kInvalidArgument);
  directory_.Forget(2, At(1));
  EXPECT_EQ(Snapshot(kNeed).decode.size(), 1u);
  directory_.Forget(3, At(1));
  EXPECT_EQ(directory_.Fits(kNeed).code(), Code::kUnavailable);
  EXPECT_EQ(directory_.Fits(longer).code(), Code::kUnavailable);  // Nothing is known of lengths.
  EXPECT_NE(directory_.LostAt(kNeed), kNever);
  EXPECT_EQ(directory_.HungAt(2), kNever);
}

TEST_F(ListedWorkersTest, AnIndexIsTakenByAWorkerOfAnyRoleWithoutWhatTheLastOneWas) {
  AllUp();
  directory_.Skip(2, At(1000));
  directory_.Forget(2, At(1));
  directory_.List(2, Role::kPrefill, "new");
  EXPECT_EQ(directory_.at(2).role, Role::kPrefill);
  EXPECT_EQ(directory_.at(2).address, "new");
  EXPECT_FALSE(directory_.IsUp(2, 12));
  EXPECT_FALSE(directory_.Usable(2));
  EXPECT_TRUE(directory_.OnUp(2, Hello(Role::kPrefill, 12), At(2)));  // The same process even.
  EXPECT_EQ(Snapshot(kNeed).prefill.size(), 3u);
  EXPECT_EQ(Snapshot(kNeed).decode.size(), 1u);
}

TEST_F(ListedWorkersTest, GrowsByTheIndicesThatAreListed) {
  AllUp();
  directory_.List(6, Role::kDecode, "six");
  directory_.List(4, Role::kDecode, "four");
  EXPECT_FALSE(directory_.at(5).listed);
  directory_.OnUp(6, Hello(Role::kDecode, 16), At(0));
  EXPECT_EQ(Snapshot(kNeed).decode.size(), 3u);
}

TEST_F(ListedWorkersTest, ASideThatWasChosenMayOutliveItsWorker) {
  AllUp();
  SequenceState::Side side;
  directory_.Take(side, 0, 40);
  directory_.Forget(0, At(1));
  directory_.List(0, Role::kDecode, "new");
  directory_.OnUp(0, Hello(Role::kDecode, 77), At(1));
  EXPECT_FALSE(directory_.IsUp(side.worker, side.incarnation));
  directory_.Release(side);
  EXPECT_EQ(directory_.at(0).pending_tokens, 0);
  EXPECT_EQ(directory_.at(0).num_sides, 0);
}

TEST_F(ListedWorkersTest, AProcessWithTwoAddressesCountsOnce) {
  AllUp();
  directory_.OnDown(3, "gone", At(1));
  directory_.OnUp(3, Hello(Role::kDecode, 12), At(1));  // As 2.
  EXPECT_EQ(Snapshot(kNeed).decode.size(), 1u);
  EXPECT_TRUE(directory_.Usable(2));
  EXPECT_TRUE(directory_.IsUp(3, 12));
  // Its other address takes over when one is lost, and forgotten.
  directory_.OnDown(2, "gone", At(2));
  EXPECT_TRUE(directory_.Usable(3));
  directory_.OnUp(2, Hello(Role::kDecode, 12), At(3));
  EXPECT_FALSE(directory_.Usable(2));
  directory_.Forget(3, At(4));
  EXPECT_TRUE(directory_.Usable(2));
  // An address that comes back as another process is no other address of this one.
  directory_.List(3, Role::kDecode, "new");
  directory_.OnUp(3, Hello(Role::kDecode, 13), At(5));
  EXPECT_EQ(Snapshot(kNeed).decode.size(), 2u);
}

// The release before does not tell how its K/V is secured.
TEST_F(ListedWorkersTest, AWorkerThatDoesNotTellHasWhatOthersTellElseWhatItsAddressGives) {
  WorkerDirectory directory({}, std::chrono::milliseconds(2500), std::chrono::seconds(2));
  directory.List(0, Role::kPrefill, "10.0.0.1:7");
  directory.List(1, Role::kPrefill, "127.0.0.1:7");
  directory.List(2, Role::kDecode, "10.0.0.2:7");
  directory.OnUp(0, Hello(Role::kPrefill, 10), At(0));
  directory.OnUp(1, Hello(Role::kPrefill, 11), At(0));
  EXPECT_EQ(directory.at(0).hello.kv_tls, true);
  EXPECT_EQ(directory.at(1).hello.kv_tls, false);
  EXPECT_NE(directory.at(0).pair, directory.at(1).pair);
  for (const bool kv_tls : {true, false}) {
    HelloInfo tells = Hello(Role::kDecode, kv_tls ? 12 : 13);
    tells.kv_tls = kv_tls;
    directory.OnUp(2, tells, At(1));
    EXPECT_EQ(directory.at(0).pair, directory.at(2).pair) << kv_tls;
    EXPECT_EQ(directory.at(1).pair, directory.at(2).pair) << kv_tls;
  }
}

}  // namespace
}  // namespace baton
