#include "common/rpc/server_call.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "baton/v1/decode.pb.h"

namespace baton {
namespace {

// A call that no server has begun: it keeps what is to be written, and the test says when it was.
class ServerCallTest : public ::testing::Test {
 protected:
  using Call = ServerCall<v1::DecodeEvent>;

  ~ServerCallTest() override { call_->OnDone(); }

  static v1::DecodeEvent SignOfLife(uint64_t num_sent) {
    v1::DecodeEvent event;
    event.mutable_alive()->set_num_events(num_sent);
    return event;
  }

  grpc::CallbackServerContext context_;
  std::vector<uint64_t> sealed_;  // As how many-th each event was sealed.
  int num_broken_ = 0;
  int num_idle_ = 0;
  const std::shared_ptr<Call> call_ =
      Call::Create(&context_, {.seal = [this](auto*, uint64_t n) { sealed_.push_back(n); },
                               .on_broken = [this] { ++num_broken_; },
                               .on_idle = [this] { ++num_idle_; }});
};

TEST_F(ServerCallTest, EventsAreSealedInOrderAndIdleOnceAllAreWritten) {
  EXPECT_TRUE(call_->Idle());
  call_->Send({});
  call_->Send({});
  EXPECT_FALSE(call_->Idle());
  call_->OnWriteDone(true);
  EXPECT_FALSE(call_->Idle());
  EXPECT_EQ(num_idle_, 0);
  call_->OnWriteDone(true);
  EXPECT_TRUE(call_->Idle());
  EXPECT_EQ(num_idle_, 1);
  EXPECT_EQ(sealed_, (std::vector<uint64_t>{0, 1}));
}

TEST_F(ServerCallTest, ASignOfLifeIsSentWhileNothingWaitsAndIsNotCounted) {
  call_->Send({});
  call_->Beat(SignOfLife);  // One event is being written.
  call_->Send({});
  EXPECT_EQ(sealed_.size(), 2u);
  call_->OnWriteDone(true);
  call_->OnWriteDone(true);
  call_->Beat(SignOfLife);
  call_->Beat(SignOfLife);  // The first is being written.
  call_->OnWriteDone(true);
  EXPECT_TRUE(call_->Idle());
  call_->Send({});
  EXPECT_EQ(sealed_, (std::vector<uint64_t>{0, 1, 2, 2}));
}

TEST_F(ServerCallTest, AfterItsEndNothingIsSentAndNothingBreaks) {
  call_->Close(absl::OkStatus());
  call_->Send({});
  call_->Beat(SignOfLife);
  call_->OnCancel();
  EXPECT_TRUE(sealed_.empty());
  EXPECT_EQ(num_broken_, 0);
}

TEST_F(ServerCallTest, ABrokenCallSaysSoOnceAndSendsNothingMore) {
  call_->Send({});
  call_->Send({});
  call_->OnWriteDone(false);
  call_->OnCancel();
  call_->Send({});
  call_->Beat(SignOfLife);
  EXPECT_EQ(num_broken_, 1);
  EXPECT_EQ(sealed_.size(), 2u);
  EXPECT_TRUE(call_->Idle());  // What waited is gone.
}

}  // namespace
}  // namespace baton
