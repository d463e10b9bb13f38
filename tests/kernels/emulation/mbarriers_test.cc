#include "kernels/emulation/mbarriers.h"

#include "tests/kernels/emulation/async_fixture.h"

namespace baton::emulation {
namespace {

using detectors::AsyncFault;

class MbarrierTest : public testing::TestWithParam<AsyncDetection> {};

TEST_P(MbarrierTest, FindsItsFaultInAnyOrderOfThreads) { ExpectDetected(GetParam()); }

const AsyncDetection kMbarrierFaults[] = {
    {AsyncFault::kUninitialised, "Uninitialised", {"which nobody has initialised"}},
    {AsyncFault::kInitialisedTwice, "InitialisedTwice", {"initialised twice"}},
    {AsyncFault::kNoInitFence,
     "NoInitFence",
     {"whose initialisation no fence.proxy.async follows"}},
    {AsyncFault::kNoInitBarrier, "NoInitBarrier", {"the mbarrier at shared byte"}},
    {AsyncFault::kNoWait, "NoWait", {"shared byte"}},
    {AsyncFault::kWrongPhase, "WrongPhase", {"shared byte"}},
    {AsyncFault::kNoExpectation, "NoExpectation", {"before a copy that it counts"}},
    {AsyncFault::kTooFewBytes, "TooFewBytes", {"16 B more than it expects"}},
    {AsyncFault::kTooManyBytes, "TooManyBytes", {"deadlock", "lacks 0 arrivals and 16 B"}},
    {AsyncFault::kNeverWaited,
     "NeverWaited",
     {"the block ends with a tensor copy never waited for"}},
    {AsyncFault::kArrivesTwice, "ArrivesTwice", {"one arrival too many"}},
};
INSTANTIATE_TEST_SUITE_P(Faults, MbarrierTest, testing::ValuesIn(kMbarrierFaults),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace baton::emulation
