#include "common/base/machine_share.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace baton {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr char kMeminfo[] =
    "MemTotal:       67108864 kB\nMemFree:  1 kB\nMemAvailable:   33554432 kB\n";  // 64, 32 GiB.

// A made "/" with these files.
class MachineShareTest : public ::testing::Test {
 protected:
  MachineShareTest() {
    std::string name = ::testing::TempDir() + "/machine-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    Put("proc/meminfo", kMeminfo);
  }
  ~MachineShareTest() override { std::filesystem::remove_all(root_); }

  void Put(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  MachineShare Read(int allowed_cores = 16) const {
    return ReadMachineShareAt(root_, allowed_cores);
  }

  std::string root_;
};

TEST_F(MachineShareTest, WithoutGroupsItIsTheMachine) {
  EXPECT_EQ(Read().cores(), 16);
  EXPECT_EQ(Read().memory_bytes(), 64 * kGiB);
  EXPECT_EQ(Read().available_bytes, 32 * kGiB);
  Put("proc/self/cgroup", "0::/\n");
  Put("sys/fs/cgroup/cpu.max", "max 100000\n");
  Put("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(Read().cores(), 16);
  EXPECT_EQ(Read().quota_cores, 0);
  EXPECT_EQ(Read().limit_bytes, 0);
  EXPECT_EQ(Read().available_bytes, 32 * kGiB);
}

TEST_F(MachineShareTest, AContainerOfVersion2HasItsQuotaAndLimit) {
  Put("proc/self/cgroup", "0::/\n");
  Put("sys/fs/cgroup/cpu.max", "250000 100000\n");
  Put("sys/fs/cgroup/memory.max", std::to_string(8 * kGiB) + "\n");
  Put("sys/fs/cgroup/memory.current", std::to_string(6 * kGiB) + "\n");
  Put("sys/fs/cgroup/memory.stat",
      "anon 1\ninactive_anon 5\ninactive_file " + std::to_string(4 * kGiB) + "\n");
  EXPECT_EQ(Read().cores(), 3);
  EXPECT_EQ(Read(/*allowed_cores=*/2).cores(), 2);  // A cpuset.
  EXPECT_EQ(Read().memory_bytes(), 8 * kGiB);
  EXPECT_EQ(Read().available_bytes, 6 * kGiB);
}

TEST_F(MachineShareTest, GroupsAboveLimitTheOwnOne) {
  Put("proc/self/cgroup", "0::/pods/one/main\n");
  Put("sys/fs/cgroup/pods/one/main/cpu.max", "800000 100000");
  Put("sys/fs/cgroup/pods/one/main/memory.max", std::to_string(9 * kGiB));
  Put("sys/fs/cgroup/pods/one/cpu.max", "400000 100000");
  Put("sys/fs/cgroup/pods/memory.max", std::to_string(7 * kGiB));
  Put("sys/fs/cgroup/pods/memory.current", std::to_string(6 * kGiB));
  EXPECT_EQ(Read().cores(), 4);
  EXPECT_EQ(Read().memory_bytes(), 7 * kGiB);
  EXPECT_EQ(Read().available_bytes, 1 * kGiB);
}

TEST_F(MachineShareTest, Version1HasAHierarchyForEachController) {
  Put("proc/self/cgroup", "9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/a\n0::/\n");
  Put("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "200000\n");
  Put("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  Put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  Put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", std::to_string(4 * kGiB));
  Put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", std::to_string(3 * kGiB));
  Put("sys/fs/cgroup/memory/a/b/memory.stat",
      "inactive_file 7\ntotal_inactive_file " + std::to_string(kGiB));
  Put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Read().cores(), 2);
  EXPECT_EQ(Read().memory_bytes(), 4 * kGiB);
  EXPECT_EQ(Read().available_bytes, 2 * kGiB);
}

TEST_F(MachineShareTest, AContainerSeesItsOwnGroupWhereverThatHangs) {
  Put("proc/self/cgroup", "3:cpu:/docker/0123\n2:memory:/docker/0123\n");
  Put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000");
  Put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  Put("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(2 * kGiB));
  EXPECT_EQ(Read().cores(), 1);
  EXPECT_EQ(Read().memory_bytes(), 2 * kGiB);
}

TEST_F(MachineShareTest, WhatIsOddLimitsNothing) {
  const std::map<std::string, std::string> files = {
      {"proc/self/cgroup", "nonsense\n::\n0::/a/\n"},
      {"sys/fs/cgroup/a/cpu.max", "many 100000"},
      {"sys/fs/cgroup/a/memory.max", "-5"},
      {"sys/fs/cgroup/cpu.max/no file", "reading it is an error"},
      {"sys/fs/cgroup/memory.max", "1e9"}};
  for (const auto& [path, text] : files) Put(path, text);
  EXPECT_EQ(Read().cores(), 16);
  EXPECT_EQ(Read().memory_bytes(), 64 * kGiB);
  std::filesystem::remove_all(root_);
  EXPECT_EQ(Read(/*allowed_cores=*/0).cores(), 1);
  EXPECT_EQ(Read().memory_bytes(), 0);
}

TEST(MachineShareOfThisProcessTest, IsNoMoreThanTheMachine) {
  const MachineShare share = ReadMachineShare();
  EXPECT_GE(share.cores(), 1);
  EXPECT_GT(share.physical_bytes, 0);
  EXPECT_LE(share.memory_bytes(), share.physical_bytes);
  EXPECT_GT(share.available_bytes, 0);
  EXPECT_LE(share.available_bytes, share.memory_bytes());
}

TEST(MachineShareOfThisProcessTest, CountsTheCoresThatItMayRunOn) {
  cpu_set_t all;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(ReadMachineShare().cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(ReadMachineShare().allowed_cores, CPU_COUNT(&all));
}

TEST(CoresOfQuotaTest, AreRoundedUpToWholeOnes) {
  EXPECT_EQ(CoresOfQuota("200000 100000\n"), 2);
  EXPECT_EQ(CoresOfQuota("150000 100000"), 2);
  EXPECT_EQ(CoresOfQuota("1000 100000"), 1);
  EXPECT_EQ(CoresOfQuota("max 100000"), 0);
  EXPECT_EQ(CoresOfQuota(""), 0);
  EXPECT_EQ(CoresOfQuota("100000"), 0);
  EXPECT_EQ(CoresOfQuota("-1 100000"), 0);
  EXPECT_EQ(CoresOfQuota("5 0"), 0);
  EXPECT_EQ(CoresOfQuota("9223372036854775807 1"), 1 << 16);
}

// The mask of a machine of 5,000 CPUs, of which the process may use 4,100, is not cut off.
TEST_F(MachineShareTest, AMaskLargerThanTheUsualOneIsReadWhole) {
  int reads = 0;
  const int cores = AllowedCores([&](size_t bytes, cpu_set_t* set) {
    ++reads;
    if (bytes * 8 < 5000) {
      errno = EINVAL;
      return -1;
    }
    for (size_t cpu = 900; cpu < 5000; ++cpu) CPU_SET_S(cpu, bytes, set);
    return 0;
  });
  EXPECT_EQ(cores, 4100);
  EXPECT_EQ(reads, 4);  // Of 1,024, 2,048, 4,096 and 8,192.
  const auto refused = [](int error) {
    return AllowedCores([error](size_t, cpu_set_t*) {
      errno = error;
      return -1;
    });
  };
  EXPECT_EQ(refused(EINVAL), 1);
  EXPECT_EQ(refused(EPERM), 1);
}

}  // namespace
}  // namespace baton
