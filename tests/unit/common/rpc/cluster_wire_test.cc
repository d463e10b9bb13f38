#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "common/rpc/message_wire.h"
#include "tests/unit/common/rpc/wire_samples.h"

// That nothing of the messages is lost is seen by MessageWireTest, but for what the last release
// does not know of.
namespace baton {
namespace {

TEST(ClusterWireTest, HelloTellsHowKvIsExchanged) {
  HelloInfo hello = WireSamples(3).Hello();
  hello.scores_prompts = true;
  hello.kv_tls = false;
  hello.nccl_version = "2.23.4";
  hello.why_no_nccl = "none";
  v1::HelloResponse proto;
  ToProto(hello, &proto);
  const absl::StatusOr<HelloInfo> back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(back->scores_prompts);
  EXPECT_EQ(back->kv_tls, false);
  EXPECT_EQ(back->nccl_version, "2.23.4");
  EXPECT_EQ(back->why_no_nccl, "none");
}

TEST(ClusterWireTest, AWorkerThatDoesNotTellScoresNoPromptsAndSecuresItsKvAnyhow) {
  v1::HelloResponse proto;
  ToProto(WireSamples(3).Hello(), &proto);
  proto.clear_scores_prompts();
  proto.clear_kv_tls();
  const absl::StatusOr<HelloInfo> back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_FALSE(back->scores_prompts);
  EXPECT_EQ(back->kv_tls, std::nullopt);
}

TEST(ClusterWireTest, StatusTellsWhatCarriesKvToWhom) {
  WorkerStatus status = WireSamples(4).Status();
  status.kv_peers = {{.incarnation = 7, .links_over_nccl = 2, .links_over_tcp = 1, .why_tcp = "x"},
                     {.incarnation = 8, .links_over_tcp = 64}};
  v1::WorkerStatus proto;
  ToProto(status, &proto);
  const absl::StatusOr<WorkerStatus> back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->kv_peers, status.kv_peers);
}

// Of a library, or of a peer: it never makes a worker one that no router takes.
TEST(ClusterWireTest, WhateverTheReasonIsItIsALabelOnTheWire) {
  HelloInfo hello = WireSamples(3).Hello();
  hello.why_no_nccl = "a\nb\xff" + std::string(5000, 'x');
  WorkerStatus status = WireSamples(4).Status();
  status.kv_peers = {{.incarnation = 7, .why_tcp = hello.why_no_nccl}};
  v1::HelloResponse said;
  ToProto(hello, &said);
  EXPECT_EQ(said.why_no_nccl().substr(0, 5), "a?b?x");
  EXPECT_TRUE(FromProto(said).ok()) << FromProto(said).status();
  v1::WorkerStatus told;
  ToProto(status, &told);
  EXPECT_TRUE(FromProto(told).ok()) << FromProto(told).status();
}

}  // namespace
}  // namespace baton
