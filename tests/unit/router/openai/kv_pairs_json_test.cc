#include "router/openai/kv_pairs_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "router/pair_fit.h"

namespace baton {
namespace {

using testing::HasSubstr;

constexpr Incarnation kDecode = 0xd;

WorkerView Worker(Role role, const std::string& nccl, bool kv_tls = false) {
  WorkerView worker{.role = role, .address = role == Role::kPrefill ? "p:1" : "d:1"};
  worker.healthy = true;
  worker.hello.incarnation = role == Role::kPrefill ? 0xf : kDecode;
  worker.hello.numerics_id = "n";
  worker.hello.kv_tls = kv_tls;
  worker.hello.nccl_version = nccl;
  if (nccl.empty()) worker.hello.why_no_nccl = "a CPU";
  worker.pair = PairOf(worker.hello);
  return worker;
}

// Of a prefill and a decode worker.
Json PairOfThem(WorkerView prefill, const WorkerView& decode) {
  RouterView view;
  view.workers = {std::move(prefill), decode};
  const Json said = KvPairsJson(view);
  EXPECT_EQ(said["kv_pairs"].size(), 1u);
  EXPECT_EQ(said["kv_pairs_left_out"], 0);
  return said["kv_pairs"][0];
}

TEST(KvPairsJsonTest, WithoutNcclItIsTcpAndWhoHasNoneIsNamed) {
  Json pair = PairOfThem(Worker(Role::kPrefill, ""), Worker(Role::kDecode, ""));
  EXPECT_EQ(Dump(pair),
            R"({"prefill":"p:1","decode":"d:1","transport":"tcp","security":"authenticated",)"
            R"("nccl":"","decode_nccl":"","links_over_nccl":0,"links_over_tcp":0,)"
            R"("why":"the prefill worker has no NCCL: a CPU"})");
  pair = PairOfThem(Worker(Role::kPrefill, "2.23.4"), Worker(Role::kDecode, ""));
  EXPECT_EQ(pair["why"], "the decode worker has no NCCL: a CPU");
  pair = PairOfThem(Worker(Role::kPrefill, "2.23.4"), Worker(Role::kDecode, "2.21.5"));
  EXPECT_EQ(pair["transport"], "tcp");
  EXPECT_THAT(pair["why"].get<std::string>(), HasSubstr("NCCL 2.23.4 at the prefill worker and"));
  pair = PairOfThem(Worker(Role::kPrefill, "", true), Worker(Role::kDecode, "", true));
  EXPECT_EQ(pair["security"], "tls");
}

TEST(KvPairsJsonTest, TheLinksSayWhatCarriesItOnceThereAreAny) {
  WorkerView prefill = Worker(Role::kPrefill, "2.23.4");
  const WorkerView decode = Worker(Role::kDecode, "2.23.4");
  EXPECT_EQ(PairOfThem(prefill, decode)["transport"], "nccl?");
  prefill.status.kv_peers = {{.incarnation = 1, .links_over_tcp = 1, .why_tcp = "another's"},
                             {.incarnation = kDecode, .links_over_nccl = 2}};
  EXPECT_EQ(PairOfThem(prefill, decode)["transport"], "nccl");
  EXPECT_EQ(PairOfThem(prefill, decode)["links_over_nccl"], 2);
  EXPECT_EQ(PairOfThem(prefill, decode)["why"], "");
  prefill.status.kv_peers[1].links_over_tcp = 1;
  prefill.status.kv_peers[1].why_tcp = "no progress";
  EXPECT_EQ(PairOfThem(prefill, decode)["transport"], "nccl+tcp");
  EXPECT_EQ(PairOfThem(prefill, decode)["why"], "no progress");
  prefill.status.kv_peers[1].links_over_nccl = 0;
  EXPECT_EQ(PairOfThem(prefill, decode)["transport"], "tcp");
}

TEST(KvPairsJsonTest, WorkersOfOneGroupThatDoNotPairSayWhy) {
  const Json pair = PairOfThem(Worker(Role::kPrefill, "", true), Worker(Role::kDecode, ""));
  EXPECT_EQ(pair["transport"], "none");
  EXPECT_THAT(pair["why"].get<std::string>(), HasSubstr("--kv-security is tls at the prefill"));
}

TEST(KvPairsJsonTest, WhoIsNotHealthyOrComputesOtherBitsIsInNoPair) {
  RouterView view;
  view.workers = {Worker(Role::kPrefill, ""), Worker(Role::kDecode, "")};
  view.workers[1].healthy = false;
  EXPECT_TRUE(KvPairsJson(view)["kv_pairs"].empty());
  view.workers[1] = Worker(Role::kDecode, "");
  view.workers[1].hello.numerics_id = "m";
  EXPECT_TRUE(KvPairsJson(view)["kv_pairs"].empty());
}

TEST(KvPairsJsonTest, OfManyTheRestIsCountedAndWhatDoesNotFitComesFirst) {
  RouterView view;
  for (int i = 0; i < 20; ++i) view.workers.push_back(Worker(Role::kPrefill, ""));
  for (int i = 0; i < 20; ++i) view.workers.push_back(Worker(Role::kDecode, "", i == 19));
  const Json said = KvPairsJson(view);
  EXPECT_EQ(said["kv_pairs"].size(), kMostKvPairs);
  EXPECT_EQ(said["kv_pairs_left_out"], 400 - kMostKvPairs);
  EXPECT_EQ(said["kv_pairs"][19]["transport"], "none");
  EXPECT_EQ(said["kv_pairs"][20]["transport"], "tcp");
}

}  // namespace
}  // namespace baton
