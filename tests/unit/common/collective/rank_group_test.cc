#include "common/collective/rank_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/this_thread.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/make_device.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kFloats = 3;

// Ranks on threads of their own. A look at the clock moves it by what the test says.
class RankGroupTest : public testing::Test {
 protected:
  RankGroup& Make(int size) {
    std::vector<Device*> devices(size, cpu_.device.get());
    group_ = *RankGroup::Create(
        devices, {.partial_floats = kFloats,
                  .slice = milliseconds(1),
                  .now = [this] { return Time(Duration(now_ += look_.load())); },
                  .queued = [this]() -> QueuedThreads {
                    return {{"1", Duration(is_starved_ ? now_.load() : 0)}};
                  }});
    return *group_;
  }

  // Calls `rank` for each of them, and joins.
  void Run(int size, const std::function<void(Communicator&)>& rank) {
    RankGroup& group = Make(size);
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r) threads.emplace_back([&, r] { rank(group.rank(r)); });
  }

  // Two steps have begun and met twice: the ranks know how long their meetings take.
  void WarmUp(Communicator& rank) {
    if (rank.rank() == 0) group_->OnStart();
    if (rank.rank() == 0) group_->OnStart();
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(rank.Agree(0).ok());
  }

  const Processors cpu_ = *MakeDevice({});
  std::unique_ptr<RankGroup> group_;
  std::atomic<int64_t> now_{0}, look_{0};  // In nanoseconds.
  std::atomic<bool> is_starved_{false};
};

TEST_F(RankGroupTest, EachRankReadsThePartialsOfAllInTheirOrder) {
  for (const int size : {1, 2, 4, 8}) {
    Run(size, [](Communicator& rank) {
      int wrong = 0;
      for (int i = 0; i < 60; ++i) {
        // Ranks come in all orders.
        const int late = (rank.rank() * 7 + i * 13) % 97;
        for (int spin = 0; spin < late; ++spin) std::this_thread::yield();
        for (int64_t at = 0; at < kFloats; ++at) {
          rank.partial()[at] = static_cast<float>(1000 * i + 10 * rank.rank() + at);
        }
        const auto parts = rank.Exchange();
        ASSERT_TRUE(parts.ok());
        ASSERT_EQ(static_cast<int>(parts->size()), rank.size());
        for (int spin = 0; spin < (rank.rank() * 5 + i) % 31; ++spin) std::this_thread::yield();
        for (int r = 0; r < rank.size(); ++r) {
          for (int64_t at = 0; at < kFloats; ++at) {
            if ((*parts)[r][at] != static_cast<float>(1000 * i + 10 * r + at)) ++wrong;
          }
        }
      }
      EXPECT_EQ(wrong, 0);
    });
  }
}

// What was read stays while the others write what comes next.
TEST_F(RankGroupTest, PartialsStayUntilTheNextExchange) {
  RankGroup& group = Make(2);
  std::jthread other([&] {
    for (const float value : {1.0f, 2.0f}) {
      *group.rank(1).partial() = value;
      EXPECT_TRUE(group.rank(1).Exchange().ok());
      if (value > 1) break;
      *group.rank(1).partial() = 2;
      EXPECT_TRUE(group.rank(1).Agree(0).ok());
    }
  });
  const auto parts = group.rank(0).Exchange();
  ASSERT_TRUE(parts.ok());
  EXPECT_TRUE(group.rank(0).Agree(0).ok());
  EXPECT_EQ(*(*parts)[1], 1);
  EXPECT_TRUE(group.rank(0).Exchange().ok());
}

TEST_F(RankGroupTest, WordsAreThoseOfThisMeeting) {
  Run(4, [](Communicator& rank) {
    for (uint32_t i = 0; i < 60; ++i) {
      const auto words = rank.Agree(i % 4 == 0 ? 1u << rank.rank() : rank.rank() == 2 ? i << 8 : 0);
      ASSERT_TRUE(words.ok());
      ASSERT_EQ(*words, i % 4 == 0 ? 15u : i << 8);
    }
  });
}

TEST_F(RankGroupTest, AFailureWakesWhoWaitsAndIsTheGroupsForGood) {
  RankGroup& group = Make(4);
  std::vector<std::jthread> waiting;
  for (const int r : {0, 1, 3}) {
    waiting.emplace_back([&group, r] {
      EXPECT_EQ(group.rank(r).Exchange().status(), absl::InternalError("broken"));
      EXPECT_EQ(group.rank(r).Agree(0).status(), absl::InternalError("broken"));
    });
  }
  // The clock stands: nobody is waited for too long.
  group.rank(2).Fail(absl::InternalError("broken"));
  group.rank(2).Fail(absl::InternalError("and again"));
  EXPECT_EQ(group.rank(2).Exchange().status(), absl::InternalError("broken"));
}

// Only a notification ends a wait amid a slice.
TEST_F(RankGroupTest, AFailureIsHeardAtOnce) {
  std::vector<Device*> devices(2, cpu_.device.get());
  std::promise<void> sleeps;  // A rank reads the clock with the lock in its hand that it sleeps by.
  std::once_flag once;
  const auto now = [&] {
    std::call_once(once, [&] { sleeps.set_value(); });
    return Time();
  };
  const auto group = *RankGroup::Create(
      devices, {.partial_floats = kFloats, .slice = seconds(20), .now = now});
  std::promise<absl::Status> heard;
  std::jthread waiting([&] { heard.set_value(group->rank(0).Agree(0).status()); });
  sleeps.get_future().wait();
  group->rank(1).Fail(absl::InternalError("broken"));
  std::future<absl::Status> status = heard.get_future();
  ASSERT_EQ(status.wait_for(seconds(10)), std::future_status::ready);
  EXPECT_EQ(status.get(), absl::InternalError("broken"));
}

TEST_F(RankGroupTest, ARankThatDoesNotComeIsNamedAfterTheLimit) {
  look_ = Duration(milliseconds(50)).count();
  Run(3, [this](Communicator& rank) {
    WarmUp(rank);
    if (rank.rank() == 1) return;  // Hangs.
    const absl::Status status = rank.Exchange().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("rank 1 of 3 has not come"));
  });
  EXPECT_GE(now_, Duration(Patience::kLeast).count());
  EXPECT_LT(now_, Duration(Patience::kMost).count());
}

// In the first step weights are touched for the first time.
TEST_F(RankGroupTest, TheFirstStepIsWaitedForLonger) {
  look_ = Duration(milliseconds(100)).count();
  Run(2, [this](Communicator& rank) {
    if (rank.rank() == 0) group_->OnStart();
    if (rank.rank() == 1) {
      while (now_ < Duration(seconds(15)).count()) std::this_thread::yield();
      look_ = 0;
    }
    EXPECT_TRUE(rank.Exchange().ok());
  });
}

TEST_F(RankGroupTest, AStoppedProcessThatWakesGoesOn) {
  look_ = Duration(milliseconds(1)).count();
  Run(2, [this](Communicator& rank) {
    WarmUp(rank);
    if (rank.rank() == 1) {
      const int64_t woken = now_ += Duration(seconds(8)).count();
      while (now_ == woken) std::this_thread::yield();  // Until the other has looked.
      now_ += Duration(seconds(8)).count();
      look_ = 0;
    }
    EXPECT_TRUE(rank.Exchange().ok());
  });
}

TEST_F(RankGroupTest, AStarvedRankIsNotCondemned) {
  look_ = Duration(milliseconds(100)).count();
  is_starved_ = true;
  Run(2, [this](Communicator& rank) {
    WarmUp(rank);
    if (rank.rank() == 1) {
      const int64_t begin = now_;
      while (now_ < begin + Duration(seconds(10)).count()) std::this_thread::yield();
      look_ = 0;
    }
    EXPECT_TRUE(rank.Exchange().ok());
  });
}

TEST_F(RankGroupTest, RanksThatComputeDifferentStepsFailTogether) {
  Run(2, [](Communicator& rank) {
    const absl::Status status =
        rank.rank() == 0 ? rank.Exchange().status() : rank.Agree(0).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  });
}

TEST_F(RankGroupTest, AStepThatEndsAlikeOnAllRanksEndsNothingElse) {
  const absl::Status ends[] = {absl::OkStatus(), absl::InternalError("x"), absl::OkStatus(),
                               absl::CancelledError("y"), absl::InvalidArgumentError("z")};
  Run(4, [&](Communicator& rank) {
    for (const absl::Status& own : ends) EXPECT_EQ(rank.End(own), absl::OkStatus());
    EXPECT_TRUE(rank.Agree(0).ok());
    // The first reads what all have made.
    const bool is_first = rank.rank() == 0;
    EXPECT_TRUE(rank.End(is_first ? absl::InternalError("x") : absl::OkStatus()).ok());
    EXPECT_TRUE(rank.Agree(0).ok());
  });
}

// At the end of the step, or by then amid it; all hear the error and not that they differ.
TEST_F(RankGroupTest, AStepThatEndsOnOneRankOtherwiseEndsTheGroup) {
  for (const absl::Status& theirs : {absl::OkStatus(), absl::CancelledError("")}) {
    Run(3, [&](Communicator& rank) {
      const absl::Status end =
          rank.End(rank.rank() == 1 ? absl::InternalError("broken") : theirs);
      EXPECT_FALSE(end.ok());
      if (theirs.ok()) {
        EXPECT_EQ(end, absl::InternalError("broken"));
      }
      EXPECT_EQ(rank.Agree(0).status(), end);
    });
  }
  Run(3, [](Communicator& rank) {
    const absl::Status end =
        rank.End(rank.rank() == 0 ? absl::OkStatus() : absl::InternalError("others"));
    EXPECT_EQ(end, absl::InternalError("others"));
  });
  Run(3, [](Communicator& rank) {
    const absl::Status end = rank.rank() == 1 ? rank.End(absl::InternalError("broken"))
                                              : rank.Exchange().status();
    EXPECT_EQ(end.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(rank.Agree(0).status(), end);
  });
  Run(2, [](Communicator& rank) {
    EXPECT_TRUE(rank.End(absl::InvalidArgumentError("of an earlier step")).ok());
    const absl::Status end =
        rank.rank() == 1 ? rank.End(absl::OkStatus()) : rank.Agree(0).status();
    EXPECT_EQ(end.code(), absl::StatusCode::kInternal);
  });
}

// Says what each rank asked of it, in the order of all.
class ScribeDevice : public CpuDevice {
 public:
  struct Shared {
    std::mutex mutex;
    std::vector<std::string> said;
    absl::Status launch;
  };
  ScribeDevice(CpuKernels* kernels, int rank, Shared* shared)
      : CpuDevice(kernels), rank_(rank), shared_(*shared) {}

  void Say(const std::string& what) {
    const std::lock_guard lock(shared_.mutex);
    shared_.said.push_back(absl::StrCat(rank_, " ", what));
  }
  absl::StatusOr<Mark> MarkNow(Lane lane) override {
    Say(absl::StrCat("marks ", ++marks_));
    return Mark{.lane = lane, .number = marks_};
  }
  absl::Status AfterPeer(Lane, const Device& peer, Mark mark) override {
    const auto& other = static_cast<const ScribeDevice&>(peer);
    Say(absl::StrCat("waits for ", mark.number, " of ", other.rank_));
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Graph>> Capture(
      absl::FunctionRef<absl::Status()> enqueue) override {
    Say("begins");
    RETURN_IF_ERROR(enqueue());
    Say("ends");
    return std::make_unique<Graph>();
  }
  absl::StatusOr<Mark> Join(const Device& peer, Mark begin,
                            absl::FunctionRef<absl::Status()> enqueue) override {
    RETURN_IF_ERROR(AfterPeer(Lane::kCompute, peer, begin));
    RETURN_IF_ERROR(enqueue());
    return MarkNow(Lane::kCompute);
  }
  absl::Status Launch(const Graph&) override {
    Say("launches");
    return shared_.launch;
  }

 private:
  const int rank_;
  Shared& shared_;
  uint64_t marks_ = 0;
};

class RankGraphsTest : public RankGroupTest {
 protected:
  void RunScribes(int size, const std::function<void(Communicator&, ScribeDevice&)>& rank) {
    std::vector<Device*> devices;
    scribes_.clear();
    for (int r = 0; r < size; ++r) {
      scribes_.push_back(std::make_unique<ScribeDevice>(kernels_.get(), r, &shared_));
      devices.push_back(scribes_.back().get());
    }
    shared_.said.clear();
    group_ = *RankGroup::Create(devices, {.partial_floats = kFloats,
                                          .slice = milliseconds(1),
                                          .now = [this] {
                                            return Time(Duration(now_ += look_.load()));
                                          },
                                          .queued = [] { return QueuedThreads(); }});
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] { rank(group_->rank(r), *scribes_[r]); });
    }
  }

  const std::unique_ptr<CpuKernels> kernels_ = *MakeCpuKernels({});
  ScribeDevice::Shared shared_;
  std::vector<std::unique_ptr<ScribeDevice>> scribes_;
};

TEST_F(RankGraphsTest, OfACaptureOneRankAtATimeEnqueues) {
  for (int round = 0; round < 10; ++round) {
    RunScribes(3, [](Communicator& rank, ScribeDevice& device) {
      const auto graph = rank.Capture([&]() -> absl::Status {
        device.Say("adds");
        RETURN_IF_ERROR(rank.Exchange().status());
        device.Say("folds");
        return absl::OkStatus();
      });
      ASSERT_TRUE(graph.ok()) << graph.status();
      EXPECT_EQ(*graph != nullptr, rank.rank() == 0);
      device.Say("is free");
    });
    std::vector<std::string>& said = shared_.said;
    ASSERT_EQ(said.size(), 27u);
    std::sort(said.end() - 3, said.end());
    EXPECT_THAT(
        said,
        testing::ElementsAre(
            "0 begins", "0 marks 1", "0 adds", "0 marks 2",             //
            "1 waits for 1 of 0", "1 adds", "1 marks 1",                //
            "2 waits for 1 of 0", "2 adds", "2 marks 1",                //
            "0 waits for 1 of 1", "0 waits for 1 of 2", "0 folds",      //
            "1 waits for 2 of 0", "1 waits for 1 of 2", "1 folds", "1 marks 2",  //
            "2 waits for 2 of 0", "2 waits for 1 of 1", "2 folds", "2 marks 2",  //
            "0 waits for 2 of 1", "0 waits for 2 of 2", "0 ends",       //
            "0 is free", "1 is free", "2 is free"));
  }
}

TEST_F(RankGraphsTest, ALaunchComesBehindAllOfAllAndBeforeAllThatFollows) {
  const Graph graph;
  RunScribes(3, [&](Communicator& rank, ScribeDevice& device) {
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(rank.Launch(rank.rank() == 0 ? &graph : nullptr).ok());
      device.Say("goes on");
      ASSERT_TRUE(rank.Agree(0).ok());
    }
  });
  std::vector<std::string>& said = shared_.said;
  ASSERT_EQ(said.size(), 2u * 12);
  for (const int i : {0, 1}) {
    const auto begin = said.begin() + 12 * i;
    std::sort(begin, begin + 3);
    std::sort(begin + 7, begin + 12);
  }
  EXPECT_THAT(said, testing::ElementsAre(
                        "0 marks 1", "1 marks 1", "2 marks 1",                            //
                        "0 waits for 1 of 1", "0 waits for 1 of 2", "0 launches",         //
                        "0 marks 2",                                                      //
                        "0 goes on", "1 goes on", "1 waits for 2 of 0", "2 goes on",      //
                        "2 waits for 2 of 0",                                             //
                        "0 marks 3", "1 marks 2", "2 marks 2",                            //
                        "0 waits for 2 of 1", "0 waits for 2 of 2", "0 launches",         //
                        "0 marks 4",                                                      //
                        "0 goes on", "1 goes on", "1 waits for 4 of 0", "2 goes on",      //
                        "2 waits for 4 of 0"));
}

TEST_F(RankGraphsTest, ALaunchThatFailsFailsAlikeOnAllRanks) {
  const Graph graph;
  shared_.launch = absl::InternalError("no launch");
  RunScribes(3, [&](Communicator& rank, ScribeDevice&) {
    const absl::Status status = rank.Launch(rank.rank() == 0 ? &graph : nullptr);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(rank.End(status).ok());
    EXPECT_TRUE(rank.Agree(0).ok());
  });
  // Of a lost device the group hears from who has lost it.
  shared_.launch = absl::UnavailableError("lost");
  RunScribes(3, [&](Communicator& rank, ScribeDevice&) {
    const absl::Status status = rank.Launch(rank.rank() == 0 ? &graph : nullptr);
    EXPECT_EQ(status, absl::UnavailableError("lost"));
    if (rank.rank() == 0) rank.Fail(status);
  });
}

TEST_F(RankGraphsTest, ARankThatDoesNotComeAmidACaptureIsNamedAfterTheLimit) {
  look_ = Duration(milliseconds(200)).count();
  RunScribes(3, [](Communicator& rank, ScribeDevice&) {
    const auto graph = rank.Capture([&]() -> absl::Status {
      // Hangs, and says so in the end.
      if (rank.rank() == 1) return absl::InternalError("hangs");
      return rank.Exchange().status();
    });
    EXPECT_FALSE(graph.ok());
    if (rank.rank() == 1) return;
    EXPECT_EQ(graph.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(graph.status().message()),
                testing::HasSubstr("rank 1 of 3 has not come to the others"));
  });
}

TEST(QueuedForCoreTest, OnlyGrows) {
  const QueuedThreads before = QueuedForCore("");
  EXPECT_EQ(before.empty(), !std::ifstream("/proc/self/schedstat").is_open());
  const QueuedThreads after = QueuedForCore("");
  for (const auto& [thread, queued] : before) {
    EXPECT_GE(queued, Duration::zero());
    const auto it = after.find(thread);
    EXPECT_TRUE(it == after.end() || it->second >= queued) << thread;
  }
  EXPECT_TRUE(QueuedForCore("no such thread").empty());
}

}  // namespace
}  // namespace baton
