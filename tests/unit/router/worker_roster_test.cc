#include "router/worker_roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/router/fake_worker_set.h"

namespace baton {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Time At(int second) { return Time{} + seconds(1000 + second); }

std::vector<std::string> Addresses(int first, int count) {
  std::vector<std::string> addresses;
  for (int i = first; i < first + count; ++i) addresses.push_back(absl::StrCat("w", i, ":1"));
  return addresses;
}

class WorkerRosterTest : public testing::Test {
 protected:
  FakeWorkerSet workers_;
  WorkerRoster roster_{
      {Role::kPrefill, Role::kDecode, Role::kPrefill}, {{Role::kDecode, "fixed:1"}}, &workers_};
};

TEST_F(WorkerRosterTest, AnAnswerListsEachAddressOnceInTheRoleOfItsName) {
  roster_.OnAnswer(0, {"a:1", "b:1", "a:1"}, At(0));
  roster_.OnAnswer(0, {"b:1", "a:1"}, At(2));
  roster_.OnAnswer(2, {"a:1"}, At(2));  // Two names give one address.
  EXPECT_THAT(workers_.Listed(Role::kPrefill), ElementsAre("a:1", "b:1"));
  EXPECT_THAT(workers_.Listed(Role::kDecode), IsEmpty());
  roster_.OnAnswer(1, {"a:1"}, At(2));  // Both roles: its hello says what it is.
  EXPECT_THAT(workers_.Listed(Role::kDecode), ElementsAre("a:1"));
}

TEST_F(WorkerRosterTest, ForgetsWhoIsAbsentAndSilentForLong) {
  workers_.connected_until = {{"a:1", At(10)}, {"b:1", At(10)}};
  roster_.OnAnswer(0, {"a:1", "b:1"}, At(0));
  roster_.OnAnswer(0, {"b:1"}, At(39));
  EXPECT_THAT(workers_.Listed(Role::kPrefill), ElementsAre("a:1", "b:1"));
  roster_.OnAnswer(0, {"b:1"}, At(40));  // b is as silent, but the name has it.
  EXPECT_THAT(workers_.Listed(Role::kPrefill), ElementsAre("b:1"));
  roster_.OnAnswer(0, {"a:1", "b:1"}, At(42));
  EXPECT_THAT(workers_.Listed(Role::kPrefill), ElementsAre("a:1", "b:1"));
}

TEST_F(WorkerRosterTest, ForgetsNobodyWhoIsConnected) {
  workers_.connected_until = {{"a:1", At(100000)}};
  roster_.OnAnswer(0, {"a:1"}, At(0));
  roster_.OnAnswer(0, {"b:1"}, At(5000));
  EXPECT_THAT(workers_.Listed(Role::kPrefill), ElementsAre("a:1", "b:1"));
}

TEST_F(WorkerRosterTest, ForgetsNobodyWhomTheLastGoodAnswerOfAnotherNameHas) {
  roster_.OnAnswer(0, {"a:1"}, At(0));
  roster_.OnAnswer(2, {"a:1"}, At(0));
  roster_.OnAnswer(1, {"a:1"}, At(0));
  roster_.OnAnswer(0, {"b:1"}, At(500));  // The third name has not been resolved since.
  EXPECT_THAT(workers_.Listed(Role::kPrefill), ElementsAre("a:1", "b:1"));
  roster_.OnAnswer(2, {"b:1"}, At(500));
  EXPECT_THAT(workers_.Listed(Role::kPrefill), ElementsAre("b:1"));
  EXPECT_THAT(workers_.Listed(Role::kDecode), ElementsAre("a:1"));
}

TEST_F(WorkerRosterTest, TheStaticListIsNeitherListedAgainNorForgotten) {
  roster_.OnAnswer(1, {"fixed:1", "a:1"}, At(0));
  EXPECT_THAT(workers_.Listed(Role::kDecode), ElementsAre("a:1"));
  roster_.OnAnswer(1, {"b:1"}, At(500));
  EXPECT_THAT(workers_.Listed(Role::kDecode), ElementsAre("b:1"));
}

TEST_F(WorkerRosterTest, AnAnswerOfThousandsLeavesOthersTheirRoom) {
  const size_t share = (WorkerRoster::kMaxWorkers - 1) / 3;
  roster_.OnAnswer(0, Addresses(10000, 5000), At(0));
  EXPECT_THAT(workers_.Listed(Role::kPrefill), SizeIs(share));
  EXPECT_EQ(roster_.num_left_out(0), 5000 - share);
  roster_.OnAnswer(1, {"a:1"}, At(0));
  EXPECT_THAT(workers_.Listed(Role::kDecode), ElementsAre("a:1"));
  // Who was left out comes when the others go.
  roster_.OnAnswer(0, Addresses(20000, 3), At(500));
  EXPECT_THAT(workers_.Listed(Role::kPrefill), ElementsAre("w20000:1", "w20001:1", "w20002:1"));
  EXPECT_EQ(roster_.num_left_out(0), 0u);
}

TEST_F(WorkerRosterTest, TriesAgainWhenThereIsNoIndex) {
  workers_.room = 1;
  roster_.OnAnswer(0, {"a:1", "b:1"}, At(0));
  EXPECT_EQ(roster_.num_left_out(0), 1u);
  workers_.room = 2;
  roster_.OnAnswer(0, {"a:1", "b:1"}, At(2));
  EXPECT_THAT(workers_.Listed(Role::kPrefill), ElementsAre("a:1", "b:1"));
  EXPECT_EQ(roster_.num_left_out(0), 0u);
}

}  // namespace
}  // namespace baton
