// Tickets of a model with two groups of layers: layers 0 and 2 see all tokens, layer 1 a window of
// 6 tokens, beside which 2 more are kept. Of 14 tokens those from 7 on come of layer 1.

#include <memory>
#include <set>
#include <vector>

#include "common/transport/receive_ledger.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr ReceiveLedger::Sender kGroupedSender{5, {}};
constexpr TicketId kGroupedHandoff{1, 2};
constexpr int32_t kRowBlockSize = 4;
constexpr int32_t kPromptTokens = 14;
constexpr int32_t kFirstOfLayer[] = {2, 7, 2};

class LedgerGroupsTest : public testing::Test {
 protected:
  LedgerGroupsTest() : epochs_(8) {
    const KvLayerGroup shape{.num_kv_heads = 1, .k_dim = 4, .v_dim = 4};
    layout_ = {.block_size = kRowBlockSize, .groups = {shape, shape}, .group_of_layer = {0, 1, 0}};
    layout_.groups[0].num_layers = 2;
    layout_.groups[1].num_layers = 1;
    layout_.groups[1].window = 6;
    layout_.groups[1].spare = 2;
    cache_ = *KvCache::Create(layout_, 8);
    const TransportOptions options{.incarnation = 9, .cache = cache_.get(), .epochs = &epochs_};
    ledger_ = std::make_unique<ReceiveLedger>(
        options, &counters_, [this](TransferEvent event) { events_.push_back(std::move(event)); });
  }

  // Rows of four entries; what of the second was passed is no block.
  static ExpectArgs Args() {
    return {.ticket = kGroupedHandoff,
            .sender = kGroupedSender.incarnation,
            .blocks = {{3, 0}, {1, 0}, {0, 0}, {6, 0}, {}, {7, 0}, {2, 0}, {5, 0}},
            .first_token = 2,
            .num_tokens = kPromptTokens,
            .digests = {1, 2, 3}};
  }
  static FrameHeader Data(int32_t layer, KvPlane plane, int32_t first, int32_t count) {
    return {.type = FrameType::kData,
            .ticket = kGroupedHandoff,
            .range = {layer, plane, first, count, 0, 1},
            .payload_bytes = static_cast<uint32_t>(count) * 4 * 4};
  }
  ReceiveLedger::Admission Admit(const FrameHeader& header) {
    return ledger_->Admit(header, kGroupedSender);
  }

  KvLayout layout_;
  BlockEpochs epochs_;
  std::unique_ptr<KvCache> cache_;
  CounterBoard counters_;
  std::vector<TransferEvent> events_;
  std::unique_ptr<ReceiveLedger> ledger_;
};

TEST_F(LedgerGroupsTest, EachRangeIsWrittenToTheBlocksOfItsLayersRowOrNowhere) {
  const std::vector<BlockId> rows[] = {{3, 1, 0, 6}, {-1, 7, 2, 5}, {3, 1, 0, 6}};
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int32_t first = 0; first < 18; ++first) {
      for (int32_t count = 1; first + count <= 18; ++count) {
        SCOPED_TRACE(testing::Message() << layer << " " << first << " " << count);
        ledger_->Expect(Args());
        const auto admission = Admit(Data(layer, KvPlane::kV, first, count));
        ledger_->Fail(kGroupedHandoff, absl::CancelledError(""));
        if (first < kFirstOfLayer[layer] || first + count > kPromptTokens) {
          EXPECT_EQ(admission.code, AbortCode::kOutOfRange);
          continue;
        }
        ASSERT_EQ(admission.kind, ReceiveLedger::Admission::Kind::kWrite);
        std::set<std::byte*> expected, written;
        for (int32_t t = first; t < first + count; ++t) {
          expected.insert(
              cache_->HeadBlock(layer, KvPlane::kV, rows[layer][t / kRowBlockSize], 0).data() +
              t % kRowBlockSize * 16);
        }
        for (const iovec& part : admission.memory) {
          for (size_t at = 0; at < part.iov_len; at += 16) {
            written.insert(static_cast<std::byte*>(part.iov_base) + at);
          }
        }
        EXPECT_EQ(written, expected);
      }
    }
  }
}

TEST_F(LedgerGroupsTest, IsVerifiedWhenOfEachLayerCameWhatItsWindowDoesNotLeaveOut) {
  ledger_->Expect(Args());
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (const KvPlane plane : {KvPlane::kK, KvPlane::kV}) {
      const int32_t first = kFirstOfLayer[layer];
      const FrameHeader header = Data(layer, plane, first, kPromptTokens - first);
      ASSERT_EQ(Admit(header).kind, ReceiveLedger::Admission::Kind::kWrite);
      ledger_->Commit(header, kGroupedSender);
    }
  }
  EXPECT_EQ(ledger_->Finish(kGroupedHandoff, kGroupedSender,
                            {.digests = {1, 2, 3}, .num_tokens = kPromptTokens}),
            AbortCode::kNone);
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_TRUE(events_[1].status.ok());
}

TEST_F(LedgerGroupsTest, TheEpochIsThatOfTheRowsBlock) {
  ledger_->Expect(Args());
  epochs_[7] = 1;  // Entry 1 of the second row.
  EXPECT_EQ(Admit(Data(0, KvPlane::kK, 4, 4)).kind, ReceiveLedger::Admission::Kind::kWrite);
  EXPECT_EQ(Admit(Data(1, KvPlane::kK, 7, 1)).code, AbortCode::kStaleEpoch);
}

TEST_F(LedgerGroupsTest, RowsThatCannotHoldWhatComesAreRefused) {
  std::vector<ExpectArgs> bad(4, Args());
  bad[0].blocks.pop_back();     // Rows of different lengths.
  bad[1].blocks[5].block = -1;  // A token of layer 1 comes there.
  bad[2].blocks[0].block = 8;   // Beyond the pool.
  bad[3].num_tokens = 17;       // Beyond the rows, though not beyond all blocks.
  for (const ExpectArgs& args : bad) {
    events_.clear();
    ledger_->Expect(args);
    ASSERT_EQ(events_.size(), 1u);
    EXPECT_EQ(events_[0].status.code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace baton
