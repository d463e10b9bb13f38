#include "common/rpc/server_call.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

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

  static v1::DecodeEvent SignOfLife() {
    v1::DecodeEvent event;
    event.mutable_alive();
    return event;
  }

  grpc::CallbackServerContext context_;
  std::vector<bool> sealed_;  // In order: a sign of life, or not.
  int num_broken_ = 0;
  int num_idle_ = 0;
  const std::shared_ptr<Call> call_ =
      Call::Create(&context_, {.seal =
                                   [this](auto* event) {
                                     sealed_.push_back(event->has_alive());
                                     return !event->has_handoff_failed();
                                   },
                               .on_broken = [this] { ++num_broken_; },
                               .on_idle = [this] { ++num_idle_; }});
};

TEST_F(ServerCallTest, EventsAreSealedInOrderAndIdleOnceAllAreWritten) {
  EXPECT_TRUE(call_->Idle());
  call_->Write({});
  call_->Write({});
  EXPECT_FALSE(call_->Idle());
  call_->OnWriteDone(true);
  EXPECT_FALSE(call_->Idle());
  EXPECT_EQ(num_idle_, 0);
  call_->OnWriteDone(true);
  EXPECT_TRUE(call_->Idle());
  EXPECT_EQ(num_idle_, 1);
  EXPECT_EQ(sealed_, (std::vector<bool>{false, false}));
}

TEST_F(ServerCallTest, ASignOfLifeIsSentWhileNothingWaits) {
  call_->Write({});
  call_->WriteIfIdle(SignOfLife());  // One event is being written.
  call_->Write({});
  EXPECT_EQ(sealed_.size(), 2u);
  call_->OnWriteDone(true);
  call_->OnWriteDone(true);
  call_->WriteIfIdle(SignOfLife());
  call_->WriteIfIdle(SignOfLife());  // The first is being written.
  call_->OnWriteDone(true);
  EXPECT_TRUE(call_->Idle());
  call_->Write({});
  EXPECT_EQ(sealed_, (std::vector<bool>{false, false, true, false}));
}

TEST_F(ServerCallTest, AnEventThatIsNotToBeSentIsNot) {
  v1::DecodeEvent failed;
  failed.mutable_handoff_failed();
  call_->Write(failed);
  EXPECT_TRUE(call_->Idle());
  EXPECT_EQ(sealed_.size(), 1u);
}

TEST_F(ServerCallTest, AfterItsEndNothingIsSentAndNothingBreaks) {
  call_->Close(absl::OkStatus());
  call_->Write({});
  call_->WriteIfIdle(SignOfLife());
  call_->OnCancel();
  EXPECT_TRUE(sealed_.empty());
  EXPECT_EQ(num_broken_, 0);
}

TEST_F(ServerCallTest, ABrokenCallSaysSoOnceAndSendsNothingMore) {
  call_->Write({});
  call_->Write({});
  call_->OnWriteDone(false);
  call_->OnCancel();
  call_->Write({});
  call_->WriteIfIdle(SignOfLife());
  EXPECT_EQ(num_broken_, 1);
  EXPECT_EQ(sealed_.size(), 2u);
  EXPECT_TRUE(call_->Idle());  // What waited is gone.
}

}  // namespace
}  // namespace baton
