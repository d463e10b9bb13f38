#include "router/routing/routing_policy.h"

#include <algorithm>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

std::optional<Route> Choose(std::string_view policy, const RoutingSnapshot& snapshot) {
  return MakeRoutingPolicy(policy).value()->Choose(snapshot);
}

TEST(RoutingPolicyTest, AnUnknownNameIsRefusedWithTheNamesThatExist) {
  const auto policy = MakeRoutingPolicy("random");
  EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(policy.status().message(),
            "policy is 'random'; allowed: least_loaded, prefix_affinity");
}

TEST(RoutingPolicyTest, APolicyKnowsItsName) {
  for (const char* name : {"least_loaded", "prefix_affinity"}) {
    EXPECT_EQ(MakeRoutingPolicy(name).value()->name(), name);
  }
}

class EveryPolicyTest : public testing::TestWithParam<const char*> {};

TEST_P(EveryPolicyTest, ChoosesNothingWithoutCandidates) {
  EXPECT_EQ(Choose(GetParam(), {}), std::nullopt);
  EXPECT_EQ(Choose(GetParam(), {.prefill = {{.worker = 0}}}), std::nullopt);
  EXPECT_EQ(Choose(GetParam(), {.decode = {{.worker = 0}}}), std::nullopt);
}

TEST_P(EveryPolicyTest, PairsOnlyWhoExchangesKv) {
  EXPECT_EQ(Choose(GetParam(),
                   {.prefill = {{.worker = 0, .pair = 1}}, .decode = {{.worker = 1, .pair = 2}}}),
            std::nullopt);
  EXPECT_EQ(Choose(GetParam(), {.prefill = {{.worker = 0, .pair = 1},
                                            {.worker = 1, .pair = 2, .pending_tokens = 99}},
                                .decode = {{.worker = 2, .pair = 2}}}),
            (Route{1, 2}));
}

TEST_P(EveryPolicyTest, TakesThePairWhoseDecodeWorkerHasRoom) {
  const RoutingSnapshot snapshot{
      .prompt_tokens = 16,
      .prefill = {{.worker = 0, .pair = 1, .pending_tokens = 50}, {.worker = 1, .pair = 2}},
      .decode = {{.worker = 2, .pair = 1, .capacity_tokens = 100, .free_tokens = 100},
                 {.worker = 3, .pair = 2, .capacity_tokens = 100, .free_tokens = 0}}};
  EXPECT_EQ(Choose(GetParam(), snapshot), (Route{0, 2}));
}

TEST_P(EveryPolicyTest, NeedsNoDecodeWorkerForASingleToken) {
  EXPECT_EQ(Choose(GetParam(), {.needs_decode = false, .prefill = {{.worker = 3}}}),
            (Route{3, -1}));
}

TEST_P(EveryPolicyTest, TakesTheLeastLoadedOfEachSide) {
  EXPECT_EQ(
      Choose(GetParam(),
             {.prompt_tokens = 10,
              .prefill = {{.worker = 0, .pending_tokens = 50}, {.worker = 1, .pending_tokens = 40}},
              .decode = {{.worker = 2, .pending_tokens = 50, .capacity_tokens = 1000},
                         {.worker = 3, .pending_tokens = 40, .capacity_tokens = 100}}}),
      (Route{1, 2}));
}

TEST_P(EveryPolicyTest, TiesGoToTheLowerWorker) {
  EXPECT_EQ(Choose(GetParam(), {.prefill = {{.worker = 4}, {.worker = 5}},
                                .decode = {{.worker = 6}, {.worker = 7}}}),
            (Route{4, 6}));
}

TEST_P(EveryPolicyTest, AsksOneWithRoomFirstAndOneWithoutRatherThanNobody) {
  RoutingSnapshot snapshot = {
      .prompt_tokens = 100,
      .prefill = {{.worker = 0}},
      .decode = {{.worker = 1, .capacity_tokens = 1000, .free_tokens = 99},
                 {.worker = 2,
                  .pending_tokens = 500,
                  .capacity_tokens = 1000,
                  .free_tokens = 100}}};
  EXPECT_EQ(Choose(GetParam(), snapshot), (Route{0, 2}));
  snapshot.decode[0].matched_tokens = 1;
  EXPECT_EQ(Choose(GetParam(), snapshot), (Route{0, 1}));
  snapshot.decode = {{.worker = 1}};
  EXPECT_EQ(Choose(GetParam(), snapshot), (Route{0, 1}));
}

TEST_P(EveryPolicyTest, AQueueCountsByTheTimeThatItTakes) {
  RoutingSnapshot snapshot = {
      .prompt_tokens = 100,
      .prefill = {{.worker = 0, .pending_tokens = 500, .tokens_per_s = 1000},
                  {.worker = 1, .pending_tokens = 200, .tokens_per_s = 300}},
      .decode = {{.worker = 2}}};
  EXPECT_EQ(Choose(GetParam(), snapshot), (Route{0, 2}));
  snapshot.prefill[1].tokens_per_s = 0;  // Not known: as the slowest.
  EXPECT_EQ(Choose(GetParam(), snapshot), (Route{1, 2}));
}

TEST_P(EveryPolicyTest, ABlamedPairLeavesBothSidesToOthers) {
  RoutingSnapshot snapshot = {.prefill = {{.worker = 0}, {.worker = 1, .pending_tokens = 9}},
                              .decode = {{.worker = 2}, {.worker = 3, .pending_tokens = 9}},
                              .blamed = {{0, 2}}};
  EXPECT_EQ(Choose(GetParam(), snapshot), (Route{0, 3}));
  snapshot.blamed.push_back({0, 3});
  EXPECT_EQ(Choose(GetParam(), snapshot), (Route{1, 2}));
  snapshot.blamed = {{0, 2}, {0, 3}, {1, 2}, {1, 3}};
  EXPECT_EQ(Choose(GetParam(), snapshot), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(All, EveryPolicyTest, testing::Values("least_loaded", "prefix_affinity"));

RoutingSnapshot OneHasItCached(int64_t pending_there) {
  return {.prompt_tokens = 100,
          .prefill = {{.worker = 0},
                      {.worker = 1, .pending_tokens = pending_there, .matched_tokens = 64}},
          .decode = {{.worker = 2, .capacity_tokens = 1000},
                     {.worker = 3,
                      .pending_tokens = pending_there,
                      .capacity_tokens = 1000,
                      .matched_tokens = 64}}};
}

TEST(PrefixAffinityTest, GoesWhereThePromptIsCachedUntilTheQueueThereCostsMore) {
  EXPECT_EQ(Choose("prefix_affinity", OneHasItCached(63)), (Route{1, 3}));
  EXPECT_EQ(Choose("prefix_affinity", OneHasItCached(65)), (Route{0, 2}));
}

// Four of each side, all alike.
RoutingSnapshot Cold(uint64_t prefix) {
  RoutingSnapshot snapshot{.prompt_tokens = 100, .prefix = prefix, .prefill = {}, .decode = {}};
  for (int32_t w = 0; w < 4; ++w) {
    snapshot.prefill.push_back({.worker = w, .incarnation = 100u + w});
    snapshot.decode.push_back({.worker = 4 + w, .incarnation = 200u + w, .capacity_tokens = 1000});
  }
  return snapshot;
}

TEST(PrefixAffinityTest, ColdPrefixesGoByHashToAllAlikeAndStayWhenAnotherWorkerGoes) {
  std::map<int32_t, int> prefills;
  std::map<int32_t, int> decodes;
  int stayed = 0;
  for (uint64_t prefix = 1; prefix <= 400; ++prefix) {
    RoutingSnapshot snapshot = Cold(prefix);
    const Route route = *Choose("prefix_affinity", snapshot);
    ++prefills[route.prefill];
    ++decodes[route.decode];
    // Another router knows the workers in another order.
    std::ranges::reverse(snapshot.prefill);
    std::ranges::reverse(snapshot.decode);
    EXPECT_EQ(*Choose("prefix_affinity", snapshot), route);
    std::erase_if(snapshot.prefill, [](const Candidate& c) { return c.worker == 3; });
    stayed += Choose("prefix_affinity", snapshot)->prefill == route.prefill ? 1 : 0;
  }
  for (const auto& [worker, num] : prefills) EXPECT_NEAR(num, 100, 40) << worker;
  for (const auto& [worker, num] : decodes) EXPECT_NEAR(num, 100, 40) << worker;
  EXPECT_EQ(stayed, 400 - prefills[3]);
}

TEST(PrefixAffinityTest, AColdPrefixAvoidsWhoHasMuchMoreToDoThanTheOthers) {
  RoutingSnapshot snapshot = Cold(7);
  const Route route = *Choose("prefix_affinity", snapshot);
  for (Candidate& c : snapshot.prefill) c.pending_tokens = c.worker == route.prefill ? 130 : 100;
  EXPECT_EQ(Choose("prefix_affinity", snapshot)->prefill, route.prefill);  // 1.21 of the mean.
  for (Candidate& c : snapshot.prefill) c.pending_tokens = c.worker == route.prefill ? 150 : 100;
  EXPECT_NE(Choose("prefix_affinity", snapshot)->prefill, route.prefill);  // 1.33 of it.
  for (Candidate& c : snapshot.decode) c.pending_tokens = c.worker == route.decode ? 150 : 100;
  EXPECT_NE(Choose("prefix_affinity", snapshot)->decode, route.decode);
}

TEST(LeastLoadedTest, DoesNotLookAtTheCache) {
  EXPECT_EQ(Choose("least_loaded", OneHasItCached(1)), (Route{0, 2}));
}

}  // namespace
}  // namespace baton
