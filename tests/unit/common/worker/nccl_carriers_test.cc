#include "common/worker/nccl_carriers.h"

#include <stdlib.h>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/make_device.h"
#include "tests/late_device/late_device.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(NcclCarriersTest, KvInTheMemoryOfACpuIsNotForNccl) {
  const auto processors = MakeDevice({.device = "cpu"});
  ASSERT_TRUE(processors.ok()) << processors.status();
  const auto nccl = ChooseNccl(*processors->device, "nccl", /*kv_tls=*/false);
  EXPECT_EQ(nccl.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(nccl.status().message(), HasSubstr("the CPU's memory"));
}

// It does not encrypt: beside TLS only who asks for it by name gets it, and is told.
TEST(NcclCarriersTest, BesideTlsNcclIsForThoseWhoNameItAndTheLogWarns) {
  setenv(nccl::kLibraryVariable, BATON_STUB_NCCL, /*overwrite=*/1);
  SetLogLevel(LogLevel::kWarning);
  const LateDevice device({});
  const auto choose = [&](const std::string& transport, bool kv_tls) {
    testing::internal::CaptureStderr();
    const absl::Status status = ChooseNccl(device, transport, kv_tls).status();
    FlushLog();
    return std::pair(std::string(status.message()), testing::internal::GetCapturedStderr());
  };
  EXPECT_EQ(choose("auto", false), std::pair(std::string(), std::string()));
  EXPECT_EQ(choose("nccl", false), std::pair(std::string(), std::string()));
  EXPECT_EQ(choose("tcp", true).first, "--kv-transport tcp");
  EXPECT_THAT(choose("auto", true).first, HasSubstr("NCCL does not encrypt"));
  const auto [refused, log] = choose("nccl", true);
  EXPECT_EQ(refused, "");
  EXPECT_THAT(log, HasSubstr("K/V over NCCL is not encrypted"));
  SetLogLevel(LogLevel::kInfo);
  unsetenv(nccl::kLibraryVariable);
}

TEST(NcclCarriersTest, SmallGpusGiveLessToStagingAndAnyFrameFits) {
  const int64_t small = StagingFor({.total = int64_t{1} << 30}).slot_bytes;
  const int64_t large = StagingFor({.total = int64_t{80} << 30}).slot_bytes;
  EXPECT_LT(small, large);
  EXPECT_GE(small, int64_t{kMaxDataPayloadBytes});
}

TEST(NcclCarriersTest, WhatDoesNotGoOverNcclIsToldLoudly) {
  const auto log_of = [](bool up, const std::string& why) {
    testing::internal::CaptureStderr();
    LogPath("a peer", up, why);
    FlushLog();
    return testing::internal::GetCapturedStderr();
  };
  SetLogLevel(LogLevel::kWarning);
  EXPECT_EQ(log_of(/*up=*/true, ""), "");
  EXPECT_THAT(log_of(/*up=*/true, "large frames do not"), HasSubstr("large frames do not"));
  EXPECT_THAT(log_of(/*up=*/false, "the peer has none"), HasSubstr("K/V goes over TCP"));
  SetLogLevel(LogLevel::kInfo);
}

TEST(NcclCarriersTest, EveryCounterOfTheCarriersIsExported) {
  Metrics metrics("prefill", "1");
  nccl::CarrierCounters counters{.pairs_up = 70001,
                                 .pairs_failed = 70002,
                                 .pairs_condemned = 70003,
                                 .pairs_stuck = 70004,
                                 .leaked_slots = 70005,
                                 .held_slots = 70008,
                                 .links_over_nccl = 70006,
                                 .links_over_tcp = 70007};
  static_assert(sizeof(counters) == 8 * sizeof(int64_t), "a counter was added: export it");
  ExportCarriers([counters] { return counters; }, &metrics);
  const std::string text = metrics.Render();
  for (int64_t value = 70001; value <= 70008; ++value) {
    EXPECT_THAT(text, HasSubstr(" " + std::to_string(value) + "\n"));
  }
  EXPECT_THAT(text, HasSubstr("baton_kv_links{transport=\"nccl\"} 70006\n"));
}

nccl::LinkState LinkTo(const char* peer, bool is_up, const char* why = "", bool sends = true) {
  return {.peer = peer, .sends = sends, .is_up = is_up, .why = why};
}

TEST(NcclCarriersTest, LinksOfOneReceiverAreToldTogether) {
  EXPECT_THAT(KvPeersOf({LinkTo("00000000000000ff rank 0", true),
                         LinkTo("0000000000000005 rank 0", false, "it has none"),
                         LinkTo("00000000000000ff rank 1", false, "no progress"),
                         LinkTo("0000000000000007 rank 0", true, "", /*sends=*/false)}),
              ElementsAre(KvPeer{.incarnation = 0xff,
                                 .links_over_nccl = 1,
                                 .links_over_tcp = 1,
                                 .why_tcp = "no progress"},
                          KvPeer{.incarnation = 5, .links_over_tcp = 1, .why_tcp = "it has none"}));
}

TEST(NcclCarriersTest, OfManyReceiversThoseWithMostLinksAreTold) {
  std::vector<nccl::LinkState> links;
  for (int i = 1; i <= 2 * kMostKvPeers; ++i) {
    links.push_back(LinkTo(absl::StrCat(absl::Hex(i), " rank 0").c_str(), true));
  }
  links.push_back(links.back());
  const std::vector<KvPeer> peers = KvPeersOf(links);
  ASSERT_EQ(peers.size(), kMostKvPeers);
  EXPECT_EQ(peers[0].incarnation, 2 * kMostKvPeers);
}

}  // namespace
}  // namespace baton
