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
