#include "router/openai/status_json.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(StatusJsonTest, ShowsEachWorkerWithItsBlocks) {
  RouterView view{.queued_requests = 2, .queued_tokens = 30, .running_requests = 4};
  WorkerView worker{.role = Role::kPrefill, .address = "127.0.0.1:9", .reason = "draining"};
  worker.alone = true;
  worker.hello.incarnation = 0xABC;
  worker.hello.num_blocks = 21;
  worker.hello.numerics_id = "n";
  worker.hello.tp_size = 4;
  worker.status = {.blocks = {1, 2, 3, 4, 5, 6},
                   .running = 7,
                   .waiting = 8,
                   .preempted = 9,
                   .queued_tokens = 10,
                   .draining = true};
  view.workers = {worker};
  const Json json = StatusJson(view, /*ready=*/true, "tiny");
  const Json& shown = json["workers"][0];
  EXPECT_EQ(shown["role"], "prefill");
  EXPECT_EQ(shown["address"], "127.0.0.1:9");
  EXPECT_EQ(shown["incarnation"], "0000000000000abc");
  EXPECT_EQ(shown["healthy"], false);
  EXPECT_EQ(Dump(shown["blocks"]),
            R"({"free":1,"cached":5,"reserved":2,"filling":3,"ready":4,"draining":6,"total":21})");
  EXPECT_EQ(shown["running"], 7);
  EXPECT_EQ(shown["waiting"], 8);
  EXPECT_EQ(shown["preempted"], 9);
  EXPECT_EQ(shown["queued_tokens"], 10);
  EXPECT_EQ(shown["draining"], true);
  EXPECT_EQ(shown["reason"], "draining");
  EXPECT_EQ(shown["alone"], true);
  EXPECT_EQ(shown["numerics_id"], "n");
  EXPECT_EQ(shown["tp"], 4);
  EXPECT_EQ(Dump(json["router"]),
            R"({"model":"tiny","ready":true,"queued_requests":2,"queued_tokens":30,)"
            R"("running_requests":4})");
}

TEST(StatusJsonTest, AnAuditShowsEachSequenceWithTheIdThatItsClientSees) {
  const Json json = AuditJson({.incarnation = 0xABC,
                               .sequences = {{.sequence = {.router = 0xABC, .counter = 5},
                                              .label = "cmpl-7",
                                              .attempt = 2,
                                              .state = "QUEUED",
                                              .decode = 0xD,
                                              .age = std::chrono::seconds(3),
                                              .moves = 1,
                                              .retries = 2,
                                              .handoff_failures = 3,
                                              .lost = {0xA, 0xB}}},
                               .blamed = {{.prefill = 1,
                                           .decode = 2,
                                           .left = std::chrono::seconds(4)}}});
  EXPECT_EQ(json["incarnation"], "0000000000000abc");
  const Json& one = json["sequences"][0];
  EXPECT_EQ(one["sequence"], ToString(SequenceId{.router = 0xABC, .counter = 5}));
  EXPECT_EQ(one["request"], "cmpl-7");
  EXPECT_EQ(one["attempt"], 2);
  EXPECT_EQ(one["state"], "QUEUED");
  EXPECT_EQ(one["prefill"], "0");
  EXPECT_EQ(one["decode"], "000000000000000d");
  EXPECT_EQ(one["age_s"], 3);
  EXPECT_EQ(Dump(one["lost"]), R"(["000000000000000a","000000000000000b"])");
  EXPECT_EQ(Dump(json["blamed"]), R"([{"prefill_worker":1,"decode_worker":2,"left_s":4.0}])");
  EXPECT_EQ(one["moves"], 1);
  EXPECT_EQ(one["retries"], 2);
  EXPECT_EQ(one["handoff_failures"], 3);
}

}  // namespace
}  // namespace baton
