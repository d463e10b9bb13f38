#include "common/transport/device_stager.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/transport/wire.h"
#include "gtest/gtest.h"
#include "tests/late_device/late_device.h"
#include "tests/transport/late_copies.h"

namespace baton {
namespace {

using Work = BlockStager::Work;

KvLayout Layout(int32_t block_size, int32_t heads, int32_t k_dim, DType dtype) {
  return {.block_size = block_size,
          .groups = {{.num_layers = 2,
                      .num_kv_heads = heads,
                      .k_dim = k_dim,
                      .v_dim = k_dim + 8,
                      .dtype = dtype}}};
}

std::vector<std::byte> Noise(size_t bytes, Random* random) {
  std::vector<std::byte> noise(bytes);  // In pools that are copied by 8 bytes.
  for (size_t at = 0; at + 8 <= bytes; at += 8) {
    const uint64_t number = random->Next();
    std::memcpy(noise.data() + at, &number, 8);
  }
  return noise;
}

// A pool of noise, and what should be in it.
struct Pool {
  Pool(const KvLayout& layout, int32_t num_blocks, Random* random) {
    const int64_t bytes = *KvCache::PoolBytes(layout, num_blocks);
    Buffer memory = *AllocateHost(bytes);
    expected = Noise(static_cast<size_t>(bytes), random);
    std::memcpy(memory.data(), expected.data(), expected.size());
    cache = *KvCache::Create(layout, num_blocks, std::move(memory), /*host=*/false);
  }
  std::vector<std::byte> Read(std::span<const PoolPiece> pieces) const {
    std::vector<std::byte> bytes;
    for (const PoolPiece& piece : pieces) {
      const auto at = expected.begin() + piece.offset;
      bytes.insert(bytes.end(), at, at + piece.bytes);
    }
    return bytes;
  }
  void Write(std::span<const PoolPiece> pieces, std::span<const std::byte> bytes) {
    for (const PoolPiece& piece : pieces) {
      std::copy_n(bytes.begin(), piece.bytes, expected.begin() + piece.offset);
      bytes = bytes.subspan(static_cast<size_t>(piece.bytes));
    }
  }
  bool IsAsExpected() const {
    return std::memcmp(cache->base(), expected.data(), expected.size()) == 0;
  }

  std::unique_ptr<KvCache> cache;
  std::vector<std::byte> expected;
};

DeviceStager::OnLost NeverLost() {
  return [](const absl::Status& status) { ADD_FAILURE() << status; };
}

// Any range of a frame's size.
FrameRange RandomRange(const KvLayout& layout, int32_t tokens, Random* random) {
  FrameRange range{.layer = static_cast<int32_t>(random->Below(2)),
                   .plane = random->Below(2) == 0 ? KvPlane::kK : KvPlane::kV};
  const auto heads = static_cast<uint64_t>(layout.groups[0].num_kv_heads);
  range.first_head = static_cast<int32_t>(random->Below(heads));
  range.num_heads = 1 + static_cast<int32_t>(random->Below(heads - range.first_head));
  range.first_token = static_cast<int32_t>(random->Below(static_cast<uint64_t>(tokens)));
  const int64_t most = kMaxDataPayloadBytes / range.num_heads /
                       HeadTokenBytes(layout, range.layer, range.plane);
  range.num_tokens = 1 + static_cast<int32_t>(random->Below(static_cast<uint64_t>(
                             std::min<int64_t>(most, tokens - range.first_token))));
  return range;
}

// Gathers and scatters of random ranges, with blocks of their own while they are under way. Nothing
// of it ends when it should unless lists and payloads stay in their slots until the copy ran.
void MoveRandomRanges(const KvLayout& layout, uint64_t seed) {
  Random random(seed);
  constexpr int32_t kSequences = 12;
  const int32_t blocks = 70 / layout.block_size + 3;
  Pool pool(layout, kSequences * blocks, &random);
  LateCopies device(seed);
  auto stager = *DeviceStager::Create(device, *pool.cache, NeverLost());
  struct Gather {
    std::shared_ptr<GatheredBytes> gathered;
    std::vector<std::byte> expected;
  };
  std::map<uint64_t, Gather> gathers;
  int refused = 0;
  for (int i = 0; i < 120; ++i) {
    const uint64_t sequence = random.Below(kSequences);
    const Work read{{1, sequence}, false}, write{{1, sequence}, true};
    if (stager->Busy(read) + stager->Busy(write) == 0) {
      if (auto it = gathers.find(sequence); it != gathers.end()) {
        ASSERT_TRUE(it->second.gathered->done);
        EXPECT_EQ(it->second.gathered->bytes, it->second.expected);
        gathers.erase(it);
      }
      std::vector<BlockId> table;
      for (int32_t b = blocks; b-- > 0;) {
        table.push_back(static_cast<BlockId>(sequence) * blocks + b);
      }
      const auto pieces = FramePieces(
          *pool.cache, RandomRange(layout, blocks * layout.block_size, &random), table, 0);
      const std::vector<std::byte> bytes = pool.Read(pieces);
      if (random.Below(2) == 0) {
        auto gathered = stager->Gather(read, pieces);
        refused += gathered == nullptr ? 1 : 0;
        if (gathered != nullptr) gathers[sequence] = {gathered, bytes};
      } else {
        std::vector<std::byte> payload = Noise(bytes.size(), &random);
        const bool launched = stager->Scatter(write, pieces, payload);
        refused += launched ? 0 : 1;
        if (launched) pool.Write(pieces, payload);
        std::fill(payload.begin(), payload.end(), std::byte{0});
      }
    }
    if (random.Below(3) == 0) stager->Collect();
  }
  EXPECT_GT(refused, 0);
  stager->AwaitQuiet();
  EXPECT_TRUE(stager->idle());
  for (const auto& [sequence, gather] : gathers) {
    ASSERT_TRUE(gather.gathered->done);
    EXPECT_EQ(gather.gathered->bytes, gather.expected);
  }
  EXPECT_TRUE(pool.IsAsExpected());
}

TEST(DeviceStagerTest, RandomRangesOfManyLayoutsMoveWhole) {
  uint64_t seed = 1;
  for (const int32_t block_size : {1, 16, 64}) {
    for (const int32_t dim : {8, 40, 120, 256}) {
      for (const DType dtype : {DType::kBF16, DType::kFp8E4M3}) {
        SCOPED_TRACE(testing::Message() << "block " << block_size << ", dim " << dim);
        MoveRandomRanges(Layout(block_size, 3, dim, dtype), seed++);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// On a device with a thread of its own: what is written is what is read later.
TEST(DeviceStagerTest, MemoryThatTheHostCannotTouchMovesBothWays) {
  const Time end = SteadyNow() + std::chrono::seconds(20);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    LateDevice device({.seed = seed, .only_when_asked = seed % 2 == 0});
    const KvLayout layout = Layout(16, 3, 40, DType::kFp8E4M3);
    constexpr int32_t kBlocks = 12;
    const int64_t bytes = *KvCache::PoolBytes(layout, kBlocks);
    auto cache = *KvCache::Create(layout, kBlocks, *device.Allocate(bytes, MemoryKind::kDevice),
                                  /*host=*/false);
    device.Fill(cache->base(), bytes, std::byte{0});
    std::vector<std::byte> expected(static_cast<size_t>(bytes));
    auto stager = *DeviceStager::Create(device, *cache, NeverLost());
    const std::vector<BlockId> table = {3, 1, 11, 0, 7, 5};
    for (int i = 0; i < 40; ++i) {
      const auto pieces = FramePieces(*cache, RandomRange(layout, 90, &random), table, 0);
      size_t size = 0;
      for (const PoolPiece& piece : pieces) size += static_cast<size_t>(piece.bytes);
      const std::vector<std::byte> payload = Noise(size, &random);
      while (!stager->Scatter({{1, 1}, true}, pieces, payload)) {
        ASSERT_LT(SteadyNow(), end) << "no slot comes free";
        stager->Collect();
      }
      const std::byte* from = payload.data();
      for (const PoolPiece& piece : pieces) {
        std::copy_n(from, piece.bytes, expected.begin() + piece.offset);
        from += piece.bytes;
      }
    }
    stager->AwaitQuiet();
    EXPECT_EQ(device.Read(cache->base(), bytes), expected);
    const PoolPiece part{bytes / 16 * 8, 4096};
    auto gathered = stager->Gather({{1, 1}, false}, {&part, 1});
    stager->AwaitQuiet();
    const auto at = expected.begin() + part.offset;
    EXPECT_EQ(gathered->bytes, std::vector<std::byte>(at, at + part.bytes));
  }
}

// As many pieces as a frame of this layout can have.
TEST(DeviceStagerTest, TheLargestFramesFitASlot) {
  for (const int32_t block_size : {1, 3, 16}) {
    for (const int32_t heads : {1, 8, 1000}) {
      SCOPED_TRACE(testing::Message() << "block " << block_size << ", heads " << heads);
      Random random(5);
      const KvLayout layout = Layout(block_size, heads, 8, DType::kFp8E4M3);
      const auto tokens = static_cast<int32_t>(kMaxDataPayloadBytes / 8 / heads);
      const int32_t blocks = tokens / block_size + 2;
      Pool pool(layout, blocks, &random);
      LateCopies device(1);
      auto stager = *DeviceStager::Create(device, *pool.cache, NeverLost());
      std::vector<BlockId> table;
      for (int32_t b = blocks; b-- > 0;) table.push_back(b);
      const FrameRange range{0, KvPlane::kK, block_size - 1, tokens, 0, heads};
      const auto pieces = FramePieces(*pool.cache, range, table, 0);
      for (int i = 0; i < DeviceStager::kSlots; ++i) {
        const std::vector<std::byte> payload =
            Noise(size_t{8} * static_cast<size_t>(tokens) * static_cast<size_t>(heads), &random);
        ASSERT_TRUE(stager->Scatter({{1, 1}, true}, pieces, payload));
        pool.Write(pieces, payload);
      }
      EXPECT_EQ(stager->Gather({{1, 2}, false}, pieces), nullptr);
      EXPECT_EQ(stager->Busy({{1, 1}, true}), DeviceStager::kSlots);
      EXPECT_EQ(stager->Busy({{1, 1}, false}), 0);
      stager->AwaitQuiet();
      EXPECT_EQ(stager->Busy({{1, 1}, true}), 0);
      auto gathered = stager->Gather({{1, 2}, false}, pieces);
      stager->AwaitQuiet();
      EXPECT_EQ(gathered->bytes, pool.Read(pieces));
      EXPECT_TRUE(pool.IsAsExpected());
    }
  }
}

TEST(DeviceStagerTest, ASlotIsFreeOnceItsCopyHasRunAndNotBefore) {
  Random random(3);
  Pool pool(Layout(16, 2, 8, DType::kBF16), 8, &random);
  LateCopies device(2);
  auto stager = *DeviceStager::Create(device, *pool.cache, NeverLost());
  const PoolPiece piece{0, 64};
  auto wanted = stager->Gather({{1, 1}, false}, {&piece, 1});
  for (int i = 1; i < DeviceStager::kSlots; ++i) {
    ASSERT_NE(stager->Gather({{1, 1}, false}, {&piece, 1}), nullptr);  // Nobody waits for it.
  }
  for (int busy = DeviceStager::kSlots; busy > 0; busy = stager->Busy({{1, 1}, false})) {
    EXPECT_EQ(wanted->done, busy < DeviceStager::kSlots);
    EXPECT_EQ(stager->idle(), false);
    stager->Collect();
  }
  EXPECT_TRUE(stager->idle());
  EXPECT_EQ(device.copies(), DeviceStager::kSlots);
  const int64_t questions = device.questions();
  stager->Collect();
  stager->AwaitQuiet();
  EXPECT_EQ(device.questions(), questions);  // Nothing to ask for.
  EXPECT_NE(stager->Gather({{1, 1}, false}, {&piece, 1}), nullptr);
  stager->AwaitQuiet();
}

TEST(DeviceStagerTest, APoolInUnitsThatADeviceDoesNotCopyIsRefused) {
  Random random(3);
  Pool pool(Layout(16, 2, 6, DType::kBF16), 8, &random);
  LateCopies device(2);
  auto stager = DeviceStager::Create(device, *pool.cache, NeverLost());
  EXPECT_EQ(stager.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(stager.status().message().find("12 bytes"), absl::string_view::npos);
  Pool good(Layout(16, 2, 8, DType::kBF16), 8, &random);
  device.FailNext(absl::ResourceExhaustedError("no memory"));
  EXPECT_EQ(DeviceStager::Create(device, *good.cache, NeverLost()).status().message(), "no memory");
}

// By looks every 100 ms of a clock that the test has.
TEST(DeviceStagerDeathTest, ACopyThatHangsEndsTheProcessThoughNobodyElseWaits) {
  using std::chrono::milliseconds;
  Random random(3);
  Pool pool(Layout(16, 2, 8, DType::kBF16), 8, &random);
  LateCopies device(2);
  Time now{};
  bool is_told = false;
  const auto lost = [&](const absl::Status& status) {
    if (!is_told) std::abort();  // Too early.
    std::fprintf(stderr, "%s", std::string(status.message()).c_str());
    ::_exit(70);
  };
  auto stager = *DeviceStager::Create(device, *pool.cache, lost, [&] { return now; });
  const auto look = [&](int times, Duration step = milliseconds(100)) {
    for (; times > 0; --times) {
      now += step;
      stager->Collect();
    }
  };
  const PoolPiece piece{0, 64};
  const auto gather = [&] {
    ASSERT_NE(stager->Gather({{1, 1}, false}, {&piece, 1}), nullptr);
  };
  look(1000);  // Nothing is under way.
  device.Hang();
  gather();
  gather();
  look(299);
  look(2, milliseconds(0));
  device.Resume();
  while (stager->Busy({{1, 1}, false}) == 2) stager->Collect();
  device.Hang();  // The second has all of its time before it.
  look(290);
  device.Resume();
  while (!stager->idle()) stager->Collect();
  device.Hang();
  gather();
  look(5, std::chrono::hours(1));  // Of a process that was stopped.
  look(290);
  is_told = true;
  EXPECT_EXIT(look(10), testing::ExitedWithCode(70),
              "late copies has not ended its work within 30000 ms");
}

TEST(DeviceStagerDeathTest, ADeviceThatFailsEndsTheProcess) {
  Random random(3);
  Pool pool(Layout(16, 2, 8, DType::kBF16), 8, &random);
  LateCopies device(2);
  const auto lost = [](const absl::Status& status) {
    std::fprintf(stderr, "%s", std::string(status.message()).c_str());
    ::_exit(70);
  };
  auto stager = *DeviceStager::Create(device, *pool.cache, lost);
  const PoolPiece piece{0, 64};
  ASSERT_NE(stager->Gather({{1, 1}, false}, {&piece, 1}), nullptr);
  device.FailNext(absl::UnavailableError("it is gone"));
  const testing::ExitedWithCode ends(70);
  EXPECT_EXIT(stager->Gather({{1, 1}, false}, {&piece, 1}), ends, "it is gone");
  EXPECT_EXIT(stager->Collect(), ends, "it is gone");
  EXPECT_EXIT(stager->AwaitQuiet(), ends, "it is gone");
  device.FailNext(absl::UnavailableError("it went amid a launch"), 1);
  EXPECT_EXIT(stager->Gather({{1, 1}, false}, {&piece, 1}), ends, "it went amid a launch");
}

}  // namespace
}  // namespace baton
