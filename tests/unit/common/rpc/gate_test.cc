#include "common/rpc/gate.h"

#include <gtest/gtest.h>

#include "common/rpc/message_wire.h"
#include "common/rpc/seal.h"
#include "tests/unit/common/rpc/wire_samples.h"

namespace baton {
namespace {

constexpr Incarnation kWorker = 77;

const RequestGate& Gate() {
  static const RequestGate gate(kWorker, kLimits);
  return gate;
}

template <typename Proto, typename Request>
Proto Meant(const Request& request, Incarnation worker = kWorker) {
  Proto proto;
  ToProto(request, &proto);
  proto.set_expected_incarnation(worker);
  return proto;
}

template <typename Proto>
Proto Sealed(Proto proto) {
  Seal(&proto);
  return proto;
}

template <typename Proto, typename Request>
void ExpectEachRule(const Request& request) {
  const Proto good = Meant<Proto>(request);
  EXPECT_TRUE(Gate().Take(Sealed(good)).ok()) << Gate().Take(Sealed(good)).status();
  Proto damaged = Sealed(good);
  damaged.set_attempt(damaged.attempt() + 1);
  EXPECT_TRUE(absl::IsDataLoss(Gate().Take(damaged).status()));
  EXPECT_TRUE(absl::IsDataLoss(Gate().Take(good).status())) << "without a seal";
  for (const Incarnation other : {Incarnation{0}, kWorker + 1}) {
    const auto taken = Gate().Take(Sealed(Meant<Proto>(request, other)));
    EXPECT_TRUE(absl::IsFailedPrecondition(taken.status())) << other;
  }
  Proto out_of_range = good;
  out_of_range.set_attempt(0);
  EXPECT_TRUE(absl::IsInvalidArgument(Gate().Take(Sealed(out_of_range)).status()));
}

TEST(GateTest, ARequestIsTakenWholeForThisProcessAndInRange) {
  WireSamples samples(3);
  ExpectEachRule<v1::DecodeRequest>(samples.Decode());
  ExpectEachRule<v1::PrefillRequest>(samples.Prefill());
  ExpectEachRule<v1::RebindRequest>(samples.Rebind());
  ExpectEachRule<v1::SendRequest>(samples.Send());
}

TEST(GateTest, ADamagedHelloIsRefused) {
  v1::HelloResponse hello;
  ToProto(WireSamples(3).Hello(), &hello);
  EXPECT_TRUE(TakeHello(Sealed(hello)).ok());
  EXPECT_TRUE(absl::IsDataLoss(TakeHello(hello).status()));
  v1::HelloResponse empty;
  EXPECT_TRUE(absl::IsInvalidArgument(TakeHello(Sealed(empty)).status()));
}

TEST(GateTest, AStatusIsTakenWholeInRangeAndOfTheProcessThatSaidHello) {
  v1::WorkerStatus status;
  ToProto(WorkerStatus{.incarnation = kWorker, .running = 3}, &status);
  EXPECT_TRUE(TakeStatus(Sealed(status), kWorker).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(TakeStatus(Sealed(status), kWorker + 1).status()));
  EXPECT_TRUE(absl::IsDataLoss(TakeStatus(status, kWorker).status()));
  status.set_running(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(TakeStatus(Sealed(status), kWorker).status()));
}

}  // namespace
}  // namespace baton
