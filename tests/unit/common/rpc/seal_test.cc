#include "common/rpc/seal.h"

#include <gtest/gtest.h>

#include <string>

#include "common/rpc/message_wire.h"
#include "tests/unit/common/rpc/wire_samples.h"

namespace baton {
namespace {

// Sealed, then each of its bits flipped in turn: what still parses must not pass for whole.
template <typename Message>
void ExpectEachFlipSeen(Message message) {
  Seal(&message);
  ASSERT_TRUE(CheckSeal(message).ok());
  const std::string sent = message.SerializeAsString();
  int num_readable = 0;
  for (size_t bit = 0; bit < 8 * sent.size(); ++bit) {
    std::string received = sent;
    received[bit / 8] = static_cast<char>(received[bit / 8] ^ (1 << bit % 8));
    Message read;
    if (!read.ParseFromString(received)) continue;
    if (read.SerializeAsString() == sent) continue;  // A second way to write `true`.
    ++num_readable;
    EXPECT_TRUE(absl::IsDataLoss(CheckSeal(read))) << "bit " << bit << ": " << read.DebugString();
  }
  EXPECT_GT(num_readable, 8);  // The checksum's own value at least.
}

template <typename Message, typename Sample>
Message Written(const Sample& sample) {
  Message message;
  ToProto(sample, &message);
  return message;
}

TEST(SealTest, ABitThatFlippedOnTheWayIsSeenInEveryMessage) {
  WireSamples samples(5);
  ExpectEachFlipSeen(Written<v1::DecodeRequest>(samples.Decode()));
  ExpectEachFlipSeen(Written<v1::PrefillRequest>(samples.Prefill()));
  ExpectEachFlipSeen(Written<v1::RebindRequest>(samples.Rebind()));
  ExpectEachFlipSeen(Written<v1::DecodeEvent>(samples.Reserved()));
  ExpectEachFlipSeen(Written<v1::DecodeEvent>(TokensEvent{.outputs = {samples.Output(3)}}));
  ExpectEachFlipSeen(Written<v1::PrefillEvent>(PrefilledEvent{.first = samples.Output(3)}));
  ExpectEachFlipSeen(Written<v1::WorkerStatus>(WorkerStatus{.incarnation = 7, .running = 3}));
}

TEST(SealTest, AMessageWithoutChecksumIsDamaged) {
  EXPECT_TRUE(absl::IsDataLoss(CheckSeal(Written<v1::RebindRequest>(WireSamples(1).Rebind()))));
}

TEST(SealTest, AFieldOfALaterVersionKeepsTheSeal) {
  v1::RebindRequest message = Written<v1::RebindRequest>(WireSamples(1).Rebind());
  // Field 20, which this version does not know, as a later one would have sent it.
  message.GetReflection()->MutableUnknownFields(&message)->AddVarint(20, 300);
  Seal(&message);
  v1::RebindRequest read;
  ASSERT_TRUE(read.ParseFromString(message.SerializeAsString()));
  EXPECT_TRUE(CheckSeal(read).ok());
}

}  // namespace
}  // namespace baton
