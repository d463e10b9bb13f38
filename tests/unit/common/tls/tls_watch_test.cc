#include "common/tls/tls_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/unit/common/tls/tls_folder.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TlsWatchTest : public ::testing::Test {
 protected:
  std::unique_ptr<TlsWatch> Watch() {
    TlsWatchOptions options{.dir = folder_.path(), .role = TlsRole::kDecode};
    options.unix_seconds = [this] {
      if (meanwhile_) std::exchange(meanwhile_, nullptr)();
      return now_s_;
    };
    options.on_change = [this](const TlsIdentity& next) {
      changes_.push_back(next.files);
      if (!changed_.HasBeenNotified()) changed_.Notify();
    };
    options.on_refused = [this](const absl::Status& why) {
      refusals_.emplace_back(why.message());
    };
    auto made = TlsWatch::Create(std::move(options));
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  const CertificateAuthority authority_ = NewAuthority();
  const TlsFiles first_ = NewFiles(authority_, IdOf(TlsRole::kDecode));
  const TlsFiles second_ = NewFiles(authority_, IdOf(TlsRole::kDecode));
  const TlsFolder folder_{first_};
  int64_t now_s_ = kNowS;
  std::function<void()> meanwhile_;  // Happens between a reading and its check.
  absl::Notification changed_;
  std::vector<TlsFiles> changes_;
  std::vector<std::string> refusals_;
};

TEST_F(TlsWatchTest, TakesANewEditionOnce) {
  const auto watch = Watch();
  watch->Poll();
  EXPECT_TRUE(changes_.empty());
  folder_.Write(second_);
  watch->Poll();
  watch->Poll();
  EXPECT_THAT(changes_, ElementsAre(second_));
  EXPECT_EQ(watch->current()->files, second_);
}

TEST_F(TlsWatchTest, KeepsTheOldWhileTheNewDoesNotFitAndSaysSoOnce) {
  const auto watch = Watch();
  folder_.WriteOne("tls.key", second_.key_pem);
  EXPECT_FALSE(watch->is_behind());
  for (int i = 0; i < 3; ++i) watch->Poll();
  EXPECT_THAT(refusals_, ElementsAre(HasSubstr("does not fit")));
  EXPECT_TRUE(watch->is_behind());
  EXPECT_EQ(watch->current()->files, first_);
  folder_.Write(second_);
  watch->Poll();
  EXPECT_THAT(changes_, ElementsAre(second_));
  EXPECT_FALSE(watch->is_behind());
  unlink(folder_.file("ca.crt").c_str());
  watch->Poll();
  EXPECT_EQ(refusals_.size(), 2u);
  EXPECT_EQ(watch->current()->files, second_);
}

TEST_F(TlsWatchTest, AFolderThatIsSwitchedWhileItIsReadIsReadAgain) {
  const auto watch = Watch();
  folder_.WriteOne("tls.key", second_.key_pem);
  meanwhile_ = [this] { folder_.Write(second_); };
  watch->Poll();
  EXPECT_THAT(refusals_, IsEmpty());
  EXPECT_THAT(changes_, ElementsAre(second_));
}

TEST_F(TlsWatchTest, ACertificateOfTheFutureIsTakenWhenItsTimeHasCome) {
  const auto watch = Watch();
  folder_.Write(NewFiles(authority_, IdOf(TlsRole::kDecode), kNowS + kBackdateS + 10));
  watch->Poll();
  EXPECT_THAT(refusals_, ElementsAre(HasSubstr("not valid before")));
  now_s_ += 11;
  watch->Poll();
  EXPECT_EQ(changes_.size(), 1u);
}

TEST_F(TlsWatchTest, AnotherNameIsNotTaken) {
  const auto watch = Watch();
  for (const SpiffeId& id : {IdOf(TlsRole::kAdmin), IdOf(TlsRole::kDecode, "other")}) {
    folder_.Write(NewFiles(authority_, id));
    watch->Poll();
  }
  EXPECT_EQ(refusals_.size(), 2u);
  EXPECT_EQ(watch->current()->files, first_);
}

TEST_F(TlsWatchTest, StartsOnlyInItsOwnRole) {
  const auto made = TlsWatch::Create({.dir = folder_.path(),
                                      .role = TlsRole::kPrefill,
                                      .unix_seconds = [] { return kNowS; }});
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("of role decode, and prefill"));
}

TEST_F(TlsWatchTest, ItsThreadSeesAChangeByItself) {
  const auto watch = Watch();
  watch->Start();
  folder_.Write(second_);
  EXPECT_TRUE(changed_.WaitForNotificationWithTimeout(absl::Seconds(60)));
}

}  // namespace
}  // namespace baton
