#include "router/routing/routing_policy.h"

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

TEST_P(EveryPolicyTest, PairsOnlyWithinAGroup) {
  EXPECT_EQ(Choose(GetParam(),
                   {.prefill = {{.worker = 0, .group = 1}}, .decode = {{.worker = 1, .group = 2}}}),
            std::nullopt);
  EXPECT_EQ(Choose(GetParam(), {.prefill = {{.worker = 0, .group = 1},
                                            {.worker = 1, .group = 2, .pending_tokens = 99}},
                                .decode = {{.worker = 2, .group = 2}}}),
            (Route{1, 2}));
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

TEST(LeastLoadedTest, DoesNotLookAtTheCache) {
  EXPECT_EQ(Choose("least_loaded", OneHasItCached(1)), (Route{0, 2}));
}

}  // namespace
}  // namespace baton
