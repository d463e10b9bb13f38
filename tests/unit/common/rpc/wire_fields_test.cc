#include "common/rpc/wire_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/message_wire.h"

namespace baton {
namespace {

using testing::HasSubstr;

DataRanks Cut(int size, int32_t heads) {
  DataRanks ranks;
  for (int i = 0; i < size; ++i) {
    const int32_t first = i * heads / size;
    v1::DataRank* rank = ranks.Add();
    rank->set_endpoint(absl::StrCat("d:", i));
    rank->set_first_head(first);
    rank->set_num_heads(heads % size == 0 ? heads / size : 1);
  }
  return ranks;
}

void ExpectSame(const std::vector<DataRank>& ranks, const DataRanks& cut) {
  DataRanks back;
  WriteRanks(ranks, &back);
  ASSERT_EQ(back.size(), cut.size());
  for (int i = 0; i < cut.size(); ++i) {
    EXPECT_EQ(back[i].SerializeAsString(), cut[i].SerializeAsString());
  }
}

TEST(WireFieldsTest, RanksOfEveryNumberHoldTheHeadsThatAreTheirs) {
  for (const int size : {1, 2, 4, 8}) {
    for (const int32_t heads : {1, 2, 3, 4, 6, 8, 12, 16, 40, 64}) {
      if (heads % size != 0 && size % heads != 0) continue;
      SCOPED_TRACE(absl::StrCat(heads, " heads of ", size, " ranks"));
      const DataRanks cut = Cut(size, heads);
      const auto ranks = ReadRanks("ranks", cut);
      ASSERT_TRUE(ranks.ok()) << ranks.status();
      ExpectSame(*ranks, cut);
    }
  }
}

TEST(WireFieldsTest, ARankOutOfItsPlaceIsNamed) {
  DataRanks swapped = Cut(4, 8);
  swapped.SwapElements(1, 2);
  EXPECT_THAT(ReadRanks("handoff.ranks", swapped).status().message(),
              HasSubstr("handoff.ranks.first_head = 4: with num_heads 2: rank 1 of 4 has 2 of 8"));
}

TEST(WireFieldsTest, RanksGoThroughARouterThatKnowsOneEndpoint) {
  EXPECT_EQ(WriteEndpoint(Cut(1, 8)), "8@d:0");
  for (const int size : {1, 2, 4, 8}) {
    for (const int32_t heads : {1, 2, 8, 40}) {
      const DataRanks cut = Cut(size, heads);
      const auto ranks = ReadEndpoint("handoff.endpoint", WriteEndpoint(cut));
      ASSERT_TRUE(ranks.ok()) << ranks.status();
      ExpectSame(*ranks, cut);
    }
  }
}

// Eight ranks on hosts of so many names, one after the other.
DataRanks OnHosts(const std::vector<std::string>& hosts) {
  DataRanks cut = Cut(8, 8);
  for (int i = 0; i < 8; ++i) {
    cut[i].set_endpoint(absl::StrCat(hosts[i % hosts.size()], ":", 7001 + i));
  }
  return cut;
}

TEST(WireFieldsTest, AHostThatWouldBeToldTooOftenForOneEndpointIsToldOnce) {
  const std::string name(63, 'd');
  for (const auto& hosts : {std::vector<std::string>{name}, {std::string(207, 'd')}, {"[::1]"}}) {
    const DataRanks cut = OnHosts(hosts);
    const std::string told = WriteEndpoint(cut);
    EXPECT_LE(told.size(), kMaxLabelBytes);
    const auto ranks = ReadEndpoint("handoff.endpoint", told);
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    ExpectSame(*ranks, cut);
    EXPECT_TRUE(FitsOneEndpoint(*ranks));
  }
  EXPECT_EQ(WriteEndpoint(OnHosts({name})),
            absl::StrCat("8@", name, ":7001,:7002,:7003,:7004,:7005,:7006,:7007,:7008"));
  // Prefill workers of protocol 3 know no other form.
  EXPECT_EQ(WriteEndpoint(Cut(2, 8)), "8@d:0,d:1");
}

TEST(WireFieldsTest, NamesThatDoNotFitIntoOneEndpointAreSeen) {
  const std::string name(40, 'd');
  for (const auto& hosts :
       {std::vector<std::string>{name + "0", name + "1"}, {std::string(208, 'd')}}) {
    const auto ranks = ReadRanks("ranks", OnHosts(hosts));
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    EXPECT_FALSE(FitsOneEndpoint(*ranks));
  }
}

TEST(WireFieldsTest, AnEndpointThatNoDecodeWorkerToldIsRefused) {
  for (const char* endpoint :
       {"d:0", "@d:0", "8@", "0@d:0", "-8@d:0", "8@d:0,d:1,d:2", "3@d:0,d:1", "65537@d:0",
        "9999999999@d:0", "8@d:0,", "8@d\n:0", "8@d:0,d:1,d:2,d:3,d:4,d:5,d:6,d:7,d:8"}) {
    const absl::Status status = ReadEndpoint("handoff.endpoint", endpoint).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << endpoint;
    EXPECT_THAT(status.message(), HasSubstr("handoff.endpoint")) << endpoint;
  }
}

TEST(WireFieldsTest, LabelsArePrintableAndShort) {
  EXPECT_TRUE(CheckLabel("tenant", "Ж x").ok());
  EXPECT_TRUE(CheckLabel("tenant", std::string(kMaxLabelBytes, 'a')).ok());
  EXPECT_FALSE(CheckLabel("tenant", std::string(kMaxLabelBytes + 1, 'a')).ok());
  EXPECT_FALSE(CheckLabel("tenant", "a\nb").ok());
  EXPECT_FALSE(CheckLabel("tenant", "a\x7f").ok());
}

}  // namespace
}  // namespace baton
